"""``python -m shakedown.cli``: the command without its script."""

from . import main

if __name__ == "__main__":
    main()
