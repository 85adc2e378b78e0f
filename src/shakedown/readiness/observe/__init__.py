"""What a worker looks at while it runs. These files may import torch; they judge nothing."""
