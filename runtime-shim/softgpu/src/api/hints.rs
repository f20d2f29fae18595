//! What a program says of its managed memory: prefetch, advice, discard.

use std::ffi::{c_int, c_uint, c_ulonglong};

use super::{Answer, DefaultStream, array, stream};
use crate::abi::{
    Advice, CuResult, DEVICE_CPU, Device, DevicePtr, Location, LocationType, StreamHandle,
};
use crate::allocations::covering;
use crate::config::Backend;
use crate::context::usable;
use crate::driver::{self, result_of};
use crate::memory;
use crate::memory::Kind;
use crate::stream::op::{Op, Placed};

/// Ranges of a batch at most.
const MAX_BATCH: usize = 1 << 20;

/// Refuses what is not wholly inside one managed allocation.
fn managed(address: DevicePtr, bytes: usize) -> Answer {
    if bytes == 0 || covering(address, bytes as u64)?.kind != Kind::Managed {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// The side that a device ordinal means, in the first version of the calls.
fn side_of_device(device: Device) -> Result<memory::Location, CuResult> {
    match device {
        DEVICE_CPU => Ok(memory::Location::Host),
        0 => Ok(memory::Location::Device),
        _ => Err(CuResult::INVALID_DEVICE),
    }
}

/// The side that a location means; all of the host is one.
fn side_of(location: Location) -> Result<memory::Location, CuResult> {
    match location.kind {
        LocationType::DEVICE if location.id == 0 => Ok(memory::Location::Device),
        LocationType::DEVICE => Err(CuResult::INVALID_DEVICE),
        LocationType::HOST | LocationType::HOST_NUMA | LocationType::HOST_NUMA_CURRENT => {
            Ok(memory::Location::Host)
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(super) unsafe fn prefetch(
    default: DefaultStream,
    address: DevicePtr,
    bytes: usize,
    to: Device,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    let to = side_of_device(to)?;
    managed(address, bytes)?;
    stream.push(Op::PrefetchOne {
        address,
        bytes: bytes as u64,
        to,
    });
    Ok(())
}

pub(super) unsafe fn prefetch_v2(
    default: DefaultStream,
    address: DevicePtr,
    bytes: usize,
    to: Location,
    flags: c_uint,
    handle: StreamHandle,
) -> Answer {
    let stream = stream(default, handle)?;
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let to = side_of(to)?;
    managed(address, bytes)?;
    stream.push(Op::PrefetchOne {
        address,
        bytes: bytes as u64,
        to,
    });
    Ok(())
}

/// The ranges of a batch, all inside managed memory.
///
/// # Safety
/// The arrays have `count` values.
unsafe fn ranges(
    addresses: *const DevicePtr,
    sizes: *const usize,
    count: usize,
    flags: c_ulonglong,
) -> Result<Vec<(u64, u64)>, CuResult> {
    if flags != 0 || count == 0 || count > MAX_BATCH {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let (addresses, sizes) = unsafe { (array(addresses, count)?, array(sizes, count)?) };
    let pairs = addresses.iter().zip(sizes);
    pairs
        .map(|(address, bytes)| managed(*address, *bytes).map(|()| (*address, *bytes as u64)))
        .collect()
}

/// The ranges of a batch with their places. Location `k` serves the ranges from
/// `first[k]` on, up to the first of the next (cuda.h, `cuMemPrefetchBatchAsync`).
///
/// # Safety
/// The arrays have `count` and `places` values.
unsafe fn placed(
    ranges: &[(u64, u64)],
    locations: *const Location,
    first: *const usize,
    places: usize,
) -> Result<Placed, CuResult> {
    if places == 0 || places > ranges.len() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let (locations, first) = unsafe { (array(locations, places)?, array(first, places)?) };
    let ordered = first[0] == 0 && first.is_sorted_by(|a, b| a < b);
    if !ordered || first[places - 1] >= ranges.len() {
        return Err(CuResult::INVALID_VALUE);
    }
    let sides = locations
        .iter()
        .map(|l| side_of(*l))
        .collect::<Result<Vec<_>, _>>()?;
    let place = |at: usize| sides[first.partition_point(|f| *f <= at) - 1];
    Ok(ranges
        .iter()
        .enumerate()
        .map(|(at, (a, bytes))| (*a, *bytes, place(at)))
        .collect())
}

#[expect(clippy::too_many_arguments, reason = "the driver's interface")]
pub(super) unsafe fn prefetch_batch(
    default: DefaultStream,
    addresses: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    locations: *mut Location,
    first: *mut usize,
    places: usize,
    flags: c_ulonglong,
    handle: StreamHandle,
) -> Answer {
    let stream = explicit(default, handle)?;
    // SAFETY: the program's arrays.
    let ranges = unsafe {
        let ranges = ranges(addresses, sizes, count, flags)?;
        placed(&ranges, locations, first, places)?
    };
    stream.push(Op::Prefetch { ranges });
    Ok(())
}

pub(super) unsafe fn discard_batch(
    default: DefaultStream,
    addresses: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    flags: c_ulonglong,
    handle: StreamHandle,
) -> Answer {
    can_discard()?;
    let stream = explicit(default, handle)?;
    // SAFETY: the program's arrays.
    let ranges = unsafe { ranges(addresses, sizes, count, flags)? }.into();
    // As libcuda 580.159 does it on an H100: in a stream that has something to do, what follows
    // a discard goes ahead of it.
    stream.push(if stream.is_idle() {
        Op::Discard { ranges }
    } else {
        Op::DiscardLate { ranges }
    });
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the driver's interface")]
pub(super) unsafe fn discard_and_prefetch_batch(
    default: DefaultStream,
    addresses: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    locations: *mut Location,
    first: *mut usize,
    places: usize,
    flags: c_ulonglong,
    handle: StreamHandle,
) -> Answer {
    can_discard()?;
    let stream = explicit(default, handle)?;
    // SAFETY: the program's arrays.
    let (dead, ranges) = unsafe {
        let dead = ranges(addresses, sizes, count, flags)?;
        let ranges = placed(&dead, locations, first, places)?;
        (dead, ranges)
    };
    stream.push(Op::Discard {
        ranges: dead.into(),
    });
    stream.push(Op::Prefetch { ranges });
    Ok(())
}

/// nvidia-uvm discards from 580 on, and the test guests' is older.
fn can_discard() -> Answer {
    match driver::device()?.config().backend {
        Backend::Own => Ok(()),
        Backend::Uvm => Err(CuResult::NOT_SUPPORTED),
    }
}

/// The batch calls take any stream but the legacy one (cuda.h).
fn explicit(
    default: DefaultStream,
    handle: StreamHandle,
) -> Result<&'static crate::stream::Stream, CuResult> {
    let stream = stream(default, handle)?;
    if std::ptr::eq(stream, stream.context().legacy()) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(stream)
}

fn advise_range(
    address: DevicePtr,
    bytes: usize,
    advice: Advice,
    place: impl FnOnce() -> Result<memory::Location, CuResult>,
) -> Answer {
    driver::ready()?;
    usable()?;
    managed(address, bytes)?;
    let advice = match advice {
        Advice::SET_READ_MOSTLY => memory::Advice::ReadMostly(true),
        Advice::UNSET_READ_MOSTLY => memory::Advice::ReadMostly(false),
        Advice::SET_PREFERRED_LOCATION => memory::Advice::Preferred(Some(place()?)),
        Advice::UNSET_PREFERRED_LOCATION => memory::Advice::Preferred(None),
        Advice::SET_ACCESSED_BY | Advice::UNSET_ACCESSED_BY => match place()? {
            memory::Location::Device => {
                memory::Advice::AccessedByDevice(advice == Advice::SET_ACCESSED_BY)
            }
            // The host always has access.
            memory::Location::Host => return Ok(()),
        },
        _ => return Err(CuResult::INVALID_VALUE),
    };
    driver::device()?
        .advise(address, bytes as u64, advice)
        .map_err(|error| {
            if let memory::MemoryError::NotSupported(_) = error {
                crate::stats::count_unsupported("cuMemAdvise(SET_READ_MOSTLY)");
            }
            result_of(error)
        })
}

pub(super) unsafe fn advise(
    address: DevicePtr,
    bytes: usize,
    advice: Advice,
    device: c_int,
) -> Answer {
    advise_range(address, bytes, advice, || side_of_device(device))
}

pub(super) unsafe fn advise_v2(
    address: DevicePtr,
    bytes: usize,
    advice: Advice,
    location: Location,
) -> Answer {
    advise_range(address, bytes, advice, || side_of(location))
}

/// All managed memory is attached globally; another attachment would restrict the host.
pub(super) unsafe fn attach(
    default: DefaultStream,
    handle: StreamHandle,
    address: DevicePtr,
    length: usize,
    flags: c_uint,
) -> Answer {
    const GLOBAL: c_uint = 1;
    const HOST: c_uint = 2;
    const SINGLE: c_uint = 4;
    stream(default, handle)?;
    let allocation = covering(address, 1)?;
    let whole = address == allocation.base && (length == 0 || length as u64 == allocation.bytes);
    if allocation.kind != Kind::Managed || !whole {
        return Err(CuResult::INVALID_VALUE);
    }
    match flags {
        // With access of both at once, an attachment says nothing new: the program
        // promises who will not access, and is not held to it.
        GLOBAL | HOST | SINGLE => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
