//! What libcuda does with nvidia-uvm when a context is made: a VA space, the GPU, its
//! address space, a channel; and what the memory calls become.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::requests::{
    DISABLE_HMM, DisableReadDuplication, EnableReadDuplication, Initialize, Migrate, MmInitialize,
    RegisterChannel, RegisterGpu, RegisterGpuVaSpace, SetAccessedBy, SetPreferredLocation,
    UnsetAccessedBy, UnsetPreferredLocation,
};
use crate::{Uuid, UvmError, open, send};

/// The driver's node.
pub const UVM_PATH: &str = "/dev/nvidia-uvm";

/// Status of [`MmInitialize`] where the driver has nothing to do (the closed flavour):
/// `NV_WARN_NOTHING_TO_DO`.
const NOTHING_TO_DO: u32 = 0x1_0006;

/// Any handles do: the stand-in for RM keeps none but the channel's.
const CLIENT: u32 = 0xc1d0_0001;
const VA_SPACE: u32 = 0xc1d0_0002;

/// A process's VA space with one GPU in it.
#[derive(Debug)]
pub struct Session {
    file: File,
    /// Holds the address space's registration with the driver.
    _mm: File,
    gpu: Uuid,
    channel: u32,
}

impl Session {
    /// Opens the driver and registers everything that a context needs. `channel` must be
    /// new in the system.
    ///
    /// # Errors
    /// [`UvmError`], of the step that failed.
    pub fn open(gpu: Uuid, channel: u32) -> Result<Self, UvmError> {
        let path = Path::new(UVM_PATH);
        let (file, mm) = (open(path)?, open(path)?);
        send(
            &file,
            &mut Initialize {
                flags: DISABLE_HMM,
                rm_status: 0,
            },
        )?;
        let uvm_fd = file.as_raw_fd();
        match send(
            &mm,
            &mut MmInitialize {
                uvm_fd,
                rm_status: 0,
            },
        ) {
            Err(UvmError::Refused { status, .. }) if status == NOTHING_TO_DO => {}
            other => other?,
        }
        let (rm_fd, client) = (-1, CLIENT);
        send(
            &file,
            &mut RegisterGpu {
                uuid: gpu,
                rm_fd,
                client,
                ..RegisterGpu::default()
            },
        )?;
        send(
            &file,
            &mut RegisterGpuVaSpace {
                uuid: gpu,
                rm_fd,
                client,
                va_space: VA_SPACE,
                rm_status: 0,
            },
        )?;
        send(
            &file,
            &mut RegisterChannel {
                uuid: gpu,
                rm_fd,
                client,
                channel,
                ..RegisterChannel::default()
            },
        )?;
        Ok(Self {
            file,
            _mm: mm,
            gpu,
            channel,
        })
    }

    /// The VA space's descriptor.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The channel that was registered.
    pub fn channel(&self) -> u32 {
        self.channel
    }

    /// The GPU.
    pub fn gpu(&self) -> Uuid {
        self.gpu
    }

    /// Makes managed memory at an address of the caller's choice. What is mapped there is
    /// replaced.
    ///
    /// # Errors
    /// [`UvmError::System`].
    ///
    /// # Safety
    /// Nothing in the program may use `address..address + bytes` for anything else.
    pub unsafe fn map_managed(&self, address: u64, bytes: u64) -> Result<(), UvmError> {
        // SAFETY: by the caller. The driver wants the offset to be the address.
        let at = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                address as libc::off_t,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(UvmError::last("mmap of /dev/nvidia-uvm"));
        }
        Ok(())
    }

    /// Moves a managed range; it is there when this returns.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn migrate(&self, base: u64, length: u64, destination: Uuid) -> Result<(), UvmError> {
        let mut request = Migrate {
            base,
            length,
            destination,
            cpu_node: -1,
            ..Migrate::default()
        };
        send(&self.file, &mut request)
    }

    /// Sets or clears where a range should be.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn prefer(&self, base: u64, length: u64, at: Option<Uuid>) -> Result<(), UvmError> {
        let rm_status = 0;
        match at {
            Some(processor) => send(
                &self.file,
                &mut SetPreferredLocation {
                    base,
                    length,
                    processor,
                    rm_status,
                },
            ),
            None => send(
                &self.file,
                &mut UnsetPreferredLocation {
                    base,
                    length,
                    rm_status,
                },
            ),
        }
    }

    /// Sets or clears that the GPU keeps mappings of a range wherever it is.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn access_by_gpu(&self, base: u64, length: u64, yes: bool) -> Result<(), UvmError> {
        let (processor, rm_status) = (self.gpu, 0);
        if yes {
            let mut request = SetAccessedBy {
                base,
                length,
                processor,
                rm_status,
            };
            send(&self.file, &mut request)
        } else {
            let mut request = UnsetAccessedBy {
                base,
                length,
                processor,
                rm_status,
            };
            send(&self.file, &mut request)
        }
    }

    /// Lets readers of a range have copies of their own, or not.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn duplicate_reads(&self, base: u64, length: u64, yes: bool) -> Result<(), UvmError> {
        let rm_status = 0;
        if yes {
            send(
                &self.file,
                &mut EnableReadDuplication {
                    base,
                    length,
                    rm_status,
                },
            )
        } else {
            send(
                &self.file,
                &mut DisableReadDuplication {
                    base,
                    length,
                    rm_status,
                },
            )
        }
    }
}
