//! Devices and weight types by name.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, Device};

use crate::KernelError;

/// The devices Draftsman runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    /// The CPU, with the hand-written kernels of this crate.
    #[default]
    Flex,
    /// A GPU through Vulkan, with the reference operations.
    Wgpu,
}

impl FromStr for DeviceKind {
    type Err = KernelError;
    fn from_str(s: &str) -> Result<Self, KernelError> {
        match s {
            "flex" | "cpu" => Ok(Self::Flex),
            "wgpu" => Ok(Self::Wgpu),
            _ => Err(KernelError::UnknownDevice(s.to_owned())),
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flex => "flex",
            Self::Wgpu => "wgpu",
        })
    }
}

/// The type frozen weights are held in. Arithmetic is f32 with each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightDtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16: half the memory, 8 bits of precision.
    Bf16,
    /// IEEE half: half the memory, 11 bits of precision, range ±65504.
    F16,
}

impl WeightDtype {
    /// burn's name for it.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// An error where `device` computes garbage with this type (`wgpu` with bf16 does, silently).
    pub(crate) fn check(self, device: &Device) -> Result<(), KernelError> {
        if is_flex(device) || device.supports_dtype(self.dtype()) {
            Ok(())
        } else {
            Err(KernelError::DtypeUnsupported { dtype: self.name() })
        }
    }
}

impl FromStr for WeightDtype {
    type Err = KernelError;
    fn from_str(s: &str) -> Result<Self, KernelError> {
        match s {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(KernelError::UnknownDtype(s.to_owned())),
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the hand-written CPU path applies (with or without autodiff).
pub(crate) fn is_flex(device: &Device) -> bool {
    // Equality ignores the autodiff association, so this holds in training and in inference.
    *device == Device::flex()
}

/// Opens a device, or says why it can't be used.
pub fn open(kind: DeviceKind) -> Result<Device, KernelError> {
    match kind {
        DeviceKind::Flex => Ok(Device::flex()),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => wgpu::open(),
        #[cfg(not(feature = "wgpu"))]
        DeviceKind::Wgpu => Err(KernelError::DeviceNotBuilt { device: "wgpu", feature: "wgpu" }),
    }
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use std::panic::catch_unwind;
    use std::sync::Once;

    use burn::backend::{CubeDevice, WgpuBackend, WgpuDevice};
    use burn::tensor::{Device, Tensor};

    use crate::KernelError;

    pub(super) fn open() -> Result<Device, KernelError> {
        // Vulkan is named, because the default falls back to OpenGL without a word where no Vulkan driver is found.
        let device = Device::new(CubeDevice::Wgpu(WgpuDevice::default().on(WgpuBackend::Vulkan)));
        // The driver is only looked for when the first kernel runs, and its absence panics: try one here.
        let probe = device.clone();
        let answer =
            catch_unwind(move || (Tensor::<1>::from_floats([1.0, 2.0], &probe) * 3.0).into_data().try_to_vec::<f32>());
        match answer {
            Ok(Ok(v)) if v == [3.0, 6.0] => {}
            other => {
                return Err(KernelError::DeviceUnavailable {
                    device: "wgpu",
                    reason: match other {
                        Ok(_) => "a first multiplication gave a wrong result".to_owned(),
                        Err(_) => "a first multiplication failed".to_owned(),
                    },
                    hint: "install a Vulkan driver (mesa-vulkan-drivers has a software one), or use the flex device",
                });
            }
        }
        // A kernel that fails to compile panics on the device's own thread, where the panic is swallowed, and reads
        // return whatever was in the buffer. Wrong numbers are worse than a dead process.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                previous(info);
                if std::thread::current().name().is_some_and(|name| name.starts_with("DSD-")) {
                    std::process::abort();
                }
            }));
        });
        Ok(device)
    }
}
