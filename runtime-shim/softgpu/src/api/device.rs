//! Initialisation, the device and what it says of itself.

use std::ffi::{c_char, c_int, c_uint};

use super::{Answer, put};
use crate::abi::{ContextHandle, CuResult, Device, Uuid, text};
use crate::context::CONTEXTS;
use crate::driver;

/// Threads of a block at most.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// Blocks in each direction at most.
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Threads of a block in each direction at most.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Shared memory of a block at most, bytes (compute capability 8.0).
pub const MAX_SHARED_BYTES: u32 = 163 << 10;
/// Shared memory of a block without asking for more, bytes.
pub const SHARED_BYTES: u32 = 48 << 10;

const UUID: Uuid = Uuid {
    bytes: *b"oversub-soft-gpu",
};
const PCI_BUS_ID: &str = "0000:00:00.0";

fn check(device: Device) -> Answer {
    driver::ready()?;
    if device == 0 {
        Ok(())
    } else {
        Err(CuResult::INVALID_DEVICE)
    }
}

/// Writes a zero-terminated text, cut to the length.
unsafe fn put_text(to: *mut c_char, length: c_int, text: &str) -> Answer {
    let room = usize::try_from(length).ok().and_then(|l| l.checked_sub(1));
    let (Some(room), false) = (room, to.is_null()) else {
        return Err(CuResult::INVALID_VALUE);
    };
    let count = text.len().min(room);
    // SAFETY: the caller's buffer has `length` bytes; `count` and the zero fit.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), count);
        to.add(count).write(0);
    }
    Ok(())
}

pub(super) unsafe fn init(flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    driver::init()
}

pub(super) unsafe fn driver_version(version: *mut c_int) -> Answer {
    // SAFETY: the program's pointer.
    unsafe { put(version, driver::version()?) }
}

pub(super) unsafe fn get(device: *mut Device, ordinal: c_int) -> Answer {
    check(ordinal)?;
    // SAFETY: the program's pointer.
    unsafe { put(device, 0) }
}

pub(super) unsafe fn count(count: *mut c_int) -> Answer {
    driver::ready()?;
    // SAFETY: the program's pointer.
    unsafe { put(count, 1) }
}

pub(super) unsafe fn name(name: *mut c_char, length: c_int, device: Device) -> Answer {
    check(device)?;
    let config = driver::device()?.config();
    let rate = |bytes_per_s: u64| bytes_per_s as f64 / 1e9;
    let text = format!(
        "oversub soft GPU ({} MiB, {} GB/s in, {} GB/s out)",
        config.memory_bytes >> 20,
        rate(config.link_in_bytes_per_s),
        rate(config.link_out_bytes_per_s),
    );
    // SAFETY: the program's buffer.
    unsafe { put_text(name, length, &text) }
}

pub(super) unsafe fn uuid(uuid: *mut Uuid, device: Device) -> Answer {
    check(device)?;
    // SAFETY: the program's pointer.
    unsafe { put(uuid, UUID) }
}

pub(super) unsafe fn total_memory(bytes: *mut usize, device: Device) -> Answer {
    check(device)?;
    let (_, total) = driver::device()?.memory_info();
    // SAFETY: the program's pointer.
    unsafe { put(bytes, total as usize) }
}

pub(super) unsafe fn attribute(value: *mut c_int, attribute: c_uint, device: Device) -> Answer {
    check(device)?;
    let answer = attribute_value(attribute).ok_or(CuResult::INVALID_VALUE)?;
    // SAFETY: the program's pointer.
    unsafe { put(value, answer) }
}

/// `CUdevice_attribute` by number: what is not named here and in range is 0, "no".
fn attribute_value(attribute: c_uint) -> Option<c_int> {
    /// The last attribute of CUDA 13.0's header.
    const LAST: c_uint = 147;
    let processors = || std::thread::available_parallelism().map_or(1, |n| n.get() as c_int);
    Some(match attribute {
        1 => MAX_BLOCK_THREADS as c_int,
        2..=4 => MAX_BLOCK[attribute as usize - 2] as c_int,
        5..=7 => MAX_GRID[attribute as usize - 5] as c_int,
        8 => SHARED_BYTES as c_int,
        9 => 64 << 10,            // Constant memory.
        10 => 32,                 // Warp.
        11 => c_int::MAX,         // Pitch.
        12 | 82 => 64 << 10,      // Registers.
        13 => 1_000_000,          // Clock, kHz.
        14 | 51 => 512,           // Alignment of textures and their rows.
        15 => 1,                  // Copies beside kernels.
        16 => processors(),       // Multiprocessors.
        19 => 1,                  // Host memory can be mapped.
        36 => 1_000_000,          // Memory clock, kHz.
        37 => 64,                 // Bus, bits.
        38 => 4 << 20,            // Second-level cache.
        39 => 2048,               // Threads of a multiprocessor.
        40 => 2,                  // Copy engines.
        41 => 1,                  // One address space.
        75 => 8,                  // Compute capability 8.0.
        81 => 164 << 10,          // Shared memory of a multiprocessor.
        83 | 89 => 1,             // Managed memory, also while the CPU uses it.
        91 => 1,                  // Registered host memory at the host's address.
        92..=94 | 122 | 123 => 1, // Words written and waited for by streams.
        95 => 1,                  // Cooperative launches.
        97 => MAX_SHARED_BYTES as c_int,
        99 => 1,        // Host memory can be registered.
        106 => 32,      // Blocks of a multiprocessor.
        111 => 1 << 10, // Shared memory that the system keeps.
        115 => 1,       // Stream-ordered allocation.
        130 => 0,
        131 | 134 => -1, // No NUMA node.
        _ if (1..=LAST).contains(&attribute) => 0,
        _ => return None,
    })
}

pub(super) unsafe fn compute_capability(
    major: *mut c_int,
    minor: *mut c_int,
    device: Device,
) -> Answer {
    check(device)?;
    // SAFETY: the program's pointers.
    unsafe {
        put(major, 8)?;
        put(minor, 0)
    }
}

pub(super) unsafe fn pci_bus_id(id: *mut c_char, length: c_int, device: Device) -> Answer {
    check(device)?;
    // SAFETY: the program's buffer.
    unsafe { put_text(id, length, PCI_BUS_ID) }
}

pub(super) unsafe fn by_pci_bus_id(device: *mut Device, id: *const c_char) -> Answer {
    driver::ready()?;
    // SAFETY: the program's string.
    if unsafe { text(id)? } != PCI_BUS_ID {
        return Err(CuResult::INVALID_DEVICE);
    }
    // SAFETY: the program's pointer.
    unsafe { put(device, 0) }
}

pub(super) unsafe fn can_access_peer(can: *mut c_int, device: Device, peer: Device) -> Answer {
    check(device)?;
    check(peer)?;
    // SAFETY: the program's pointer.
    unsafe { put(can, 0) }
}

pub(super) unsafe fn primary_retain(context: *mut ContextHandle, device: Device) -> Answer {
    check(device)?;
    if context.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let handle = driver::retain_primary()?
        .handle()
        .ok_or(CuResult::INVALID_CONTEXT)?;
    // SAFETY: the program's pointer.
    unsafe { put(context, ContextHandle(handle)) }
}

pub(super) unsafe fn primary_release(device: Device) -> Answer {
    check(device)?;
    driver::release_primary()
}

pub(super) unsafe fn primary_reset(device: Device) -> Answer {
    check(device)?;
    driver::reset_primary();
    Ok(())
}

pub(super) unsafe fn primary_state(
    device: Device,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Answer {
    check(device)?;
    let (present, alive) = driver::primary_state();
    // SAFETY: the program's pointers.
    unsafe {
        put(flags, present)?;
        put(active, alive as c_int)
    }
}

pub(super) unsafe fn primary_set_flags(device: Device, flags: c_uint) -> Answer {
    check(device)?;
    super::context::check_flags(flags)?;
    driver::set_primary_flags(flags);
    Ok(())
}

/// The context of a handle.
///
/// # Errors
/// `INVALID_CONTEXT`.
pub(super) fn context_of(
    handle: ContextHandle,
) -> Result<&'static crate::context::Context, CuResult> {
    CONTEXTS.get(handle.0).ok_or(CuResult::INVALID_CONTEXT)
}
