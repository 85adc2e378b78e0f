"""Fourier transforms: every normalisation, odd and even sizes, dimensions in any order and more than XLA takes at once."""

from functools import partial

import pytest
import torch

from shakedown.conformance.databases import moved

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

NORMS = ["backward", "ortho", "forward"]
FULL = ["fft", "ifft", "rfft", "ihfft", "hfft", "irfft"]
MANY = ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"]


def signal(name, *size, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    kind = (
        dtype if name.startswith(("rfft", "ihfft")) else torch.complex64 if dtype is torch.float32 else torch.complex128
    )
    return torch.randn(*size, dtype=kind, generator=generator)


@pytest.mark.covering
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FULL)
def test_sizes_and_normalisations(name, norm):
    fn = getattr(torch.fft, name)
    for size in (1, 2, 5, 6, 31):
        agree(partial(fn, norm=norm), signal(name, 3, max(size, 2)))
        agree(partial(fn, n=size, dim=0, norm=norm), signal(name, 6, 2, dtype=torch.float32))


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", MANY)
def test_many_dimensions(name):
    fn = getattr(torch.fft, name)
    x = signal(name, 2, 3, 4, 3, 2)
    agree(fn, x)
    for dim in ([0], [-1, 0], [3, 1], [2, 0, 4], [0, 1, 2, 3]):
        agree(partial(fn, dim=dim, norm="ortho"), x)
    agree(partial(fn, s=(5, 2), dim=(1, 3)), x)
    agree(partial(fn, dim=(0, 1)), x.transpose(0, 2))


def test_whole_spectrum_of_a_real_signal():
    for n in (4, 5):
        x = torch.randn(2, n, generator=torch.Generator().manual_seed(2))
        agree(lambda x: torch.ops.aten._fft_r2c(x, [0, 1], 1, False), x)
        agree(torch.fft.fft, x)


def test_half_spectrum_ignores_what_a_real_signal_cannot_have():
    """Imaginary parts of the constant and of the highest frequency."""
    for n in (6, 7):
        x = torch.complex(torch.arange(1.0, 5), torch.arange(5.0, 1, -1))
        agree(partial(torch.fft.irfft, n=n), x)


def test_strides_are_the_cpus():
    x = torch.randn(3, 4, 5, dtype=torch.complex128)
    for fn in (torch.fft.fft2, torch.fft.rfft2, torch.fft.irfftn, lambda x: torch.fft.fft(x, dim=0)):
        for y in (x, x.transpose(0, 2)):
            y = y.real.contiguous() if fn is torch.fft.rfft2 else y
            assert fn(moved(y)).stride() == fn(y).stride()


@pytest.mark.parametrize("fn", [torch.fft.fft, torch.fft.irfft, lambda x: torch.fft.rfft(x.real)])
def test_no_signals_are_what_the_cpu_makes_of_them(fn):
    """MKL refuses an empty batch; PyTorch's other library accepts it."""
    x = torch.zeros(0, 4, dtype=torch.complex64)
    try:
        expected = fn(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as there:
            fn(x.to("neuron"))
        assert str(there.value) == str(error)
    else:
        assert fn(x.to("neuron")).shape == expected.shape


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8], ids=str)
def test_integers(dtype):
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    agree(torch.fft.fft2, x)
    agree(torch.fft.rfft, x)
    agree(torch.fft.hfft, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_refused_as_on_the_cpu(dtype):
    x = torch.ones(4, dtype=dtype)
    for fn in (torch.fft.fft, torch.fft.rfft, torch.fft.irfft):
        with pytest.raises(RuntimeError) as here:
            fn(x)
        with pytest.raises(RuntimeError) as there:
            fn(x.to("neuron"))
        assert str(there.value) == str(here.value)


def test_gradients():
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    agree(lambda x: torch.fft.rfft2(x).abs(), x, gradients=True)
    agree(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=5), x, gradients=True)
    agree(lambda x: torch.view_as_real(torch.fft.fft(x)), x, gradients=True)


def test_short_time_transforms():
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(4))
    window = torch.hann_window(16)

    def there_and_back(x, window):
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return spectrum, torch.istft(spectrum, 16, 4, window=window, length=64)

    agree(there_and_back, x, window)


def test_compiled():
    @torch.compile(backend="neuron", fullgraph=True)
    def filtered(x):
        spectrum = torch.fft.rfft2(x)
        return torch.fft.irfft2(spectrum * spectrum.abs(), s=x.shape) + torch.fft.fftn(x).real

    x = torch.randn(5, 6, dtype=torch.float64)
    expected = filtered._torchdynamo_orig_callable(x)
    torch.testing.assert_close(filtered(x.to("neuron")).cpu(), expected, rtol=1e-9, atol=1e-9)
    assert not torch.neuron.get_fallback_ops()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_sample_frequencies(n):
    for make in (torch.fft.fftfreq, torch.fft.rfftfreq):
        actual = make(n, 0.25, device="neuron")
        assert torch.equal(actual.cpu(), make(n, 0.25))
    assert (
        torch.fft.fftfreq(n, 2.0, device="neuron", dtype=torch.float64)
        .cpu()
        .equal(torch.fft.fftfreq(n, 2.0, dtype=torch.float64))
    )
