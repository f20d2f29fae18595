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
/// The stand-in for RM has no descriptors.
const NO_RM: i32 = -1;

/// A VA space of this process, without a GPU.
#[derive(Debug)]
pub struct Space {
    file: File,
    /// Holds the address space's registration with the driver.
    _mm: File,
}

impl Space {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`UvmError`], of the step that failed.
    pub fn open() -> Result<Self, UvmError> {
        let path = Path::new(UVM_PATH);
        let (file, mm) = (open(path)?, open(path)?);
        let mut initialize = Initialize {
            flags: DISABLE_HMM,
            rm_status: 0,
        };
        send(&file, &mut initialize)?;
        let mut tie = MmInitialize {
            uvm_fd: file.as_raw_fd(),
            rm_status: 0,
        };
        match send(&mm, &mut tie) {
            Err(UvmError::Refused { status, .. }) if status == NOTHING_TO_DO => {}
            other => other?,
        }
        Ok(Self { file, _mm: mm })
    }

    /// Registers a GPU, without an address space on it: the driver keeps the GPU, and counts
    /// in its procfs, as long as this is there.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn register(&self, gpu: Uuid) -> Result<(), UvmError> {
        let mut request = RegisterGpu {
            uuid: gpu,
            rm_fd: NO_RM,
            client: CLIENT,
            ..RegisterGpu::default()
        };
        send(&self.file, &mut request)
    }

    /// Maps managed memory, aligned to blocks, untouched.
    ///
    /// # Errors
    /// There is no room, or the driver refuses.
    pub fn map(&self, bytes: usize) -> Result<Managed, UvmError> {
        const BLOCK: usize = 2 << 20;
        let room = bytes.next_multiple_of(BLOCK) + BLOCK;
        // The driver wants the offset to be the address, so an address is found first.
        // SAFETY: no address is given, so nothing that exists is touched.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(UvmError::last("mmap of room for managed memory"));
        }
        let start = (reserved as usize).next_multiple_of(BLOCK);
        let managed = Managed {
            room: reserved as usize,
            room_bytes: room,
            start,
            bytes,
        };
        // SAFETY: inside the room that was reserved above for this.
        unsafe { map_managed(&self.file, start as u64, bytes as u64)? };
        Ok(managed)
    }
}

/// Managed memory of this process; unmapped when dropped.
#[derive(Debug)]
pub struct Managed {
    room: usize,
    room_bytes: usize,
    start: usize,
    bytes: usize,
}

impl Managed {
    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Writes one byte, `offset` bytes in; `false`: it does not reach that far.
    pub fn touch(&self, offset: usize, value: u8) -> bool {
        if offset >= self.bytes {
            return false;
        }
        // SAFETY: inside the mapping, which is writable and lives as long as `self`.
        unsafe { std::ptr::write_volatile((self.start + offset) as *mut u8, value) };
        true
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the room was mapped by `Space::map`, and nothing points into it any more.
        unsafe { libc::munmap(self.room as *mut libc::c_void, self.room_bytes) };
    }
}

/// # Safety
/// Nothing in the program may use `address..address + bytes` for anything else.
unsafe fn map_managed(file: &File, address: u64, bytes: u64) -> Result<(), UvmError> {
    // SAFETY: by the caller. The driver wants the offset to be the address.
    let at = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            address as libc::off_t,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(UvmError::last("mmap of /dev/nvidia-uvm"));
    }
    Ok(())
}

/// Moves a managed range of the VA space behind a descriptor, ours or another process's; it
/// is there when this returns.
///
/// # Errors
/// [`UvmError`].
pub fn migrate(va_space: &File, base: u64, length: u64, destination: Uuid) -> Result<(), UvmError> {
    let mut request = Migrate {
        base,
        length,
        destination,
        cpu_node: -1,
        ..Migrate::default()
    };
    send(va_space, &mut request)
}

/// A process's VA space with one GPU in it.
#[derive(Debug)]
pub struct Session {
    space: Space,
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
        let space = Space::open()?;
        space.register(gpu)?;
        let (rm_fd, client) = (NO_RM, CLIENT);
        send(
            &space.file,
            &mut RegisterGpuVaSpace {
                uuid: gpu,
                rm_fd,
                client,
                va_space: VA_SPACE,
                rm_status: 0,
            },
        )?;
        send(
            &space.file,
            &mut RegisterChannel {
                uuid: gpu,
                rm_fd,
                client,
                channel,
                ..RegisterChannel::default()
            },
        )?;
        Ok(Self {
            space,
            gpu,
            channel,
        })
    }

    /// The VA space's descriptor.
    pub fn file(&self) -> &File {
        &self.space.file
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
        // SAFETY: by the caller.
        unsafe { map_managed(self.file(), address, bytes) }
    }

    /// Moves a managed range; it is there when this returns.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn migrate(&self, base: u64, length: u64, destination: Uuid) -> Result<(), UvmError> {
        migrate(self.file(), base, length, destination)
    }

    /// Sets or clears where a range should be.
    ///
    /// # Errors
    /// [`UvmError`].
    pub fn prefer(&self, base: u64, length: u64, at: Option<Uuid>) -> Result<(), UvmError> {
        match at {
            Some(processor) => send(
                &self.space.file,
                &mut SetPreferredLocation::new(base, length, processor),
            ),
            None => send(
                &self.space.file,
                &mut UnsetPreferredLocation {
                    base,
                    length,
                    rm_status: 0,
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
            send(&self.space.file, &mut request)
        } else {
            let mut request = UnsetAccessedBy {
                base,
                length,
                processor,
                rm_status,
            };
            send(&self.space.file, &mut request)
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
                &self.space.file,
                &mut EnableReadDuplication {
                    base,
                    length,
                    rm_status,
                },
            )
        } else {
            send(
                &self.space.file,
                &mut DisableReadDuplication {
                    base,
                    length,
                    rm_status,
                },
            )
        }
    }
}
