//! Questions about pointers and managed ranges.

use std::ffi::{c_int, c_uint, c_void};

use super::{Answer, array, put, put_if_wanted};
use crate::abi::{
    ContextHandle, CuResult, DEVICE_CPU, DEVICE_INVALID, Device, DevicePtr, LocationType,
    MEMORYTYPE_DEVICE, MEMORYTYPE_HOST, PointerAttribute, RangeAttribute,
};
use crate::allocations::{self, Owned, Pinned};
use crate::context::usable;
use crate::driver::{self, result_of};
use crate::memory::{Allocation, Kind, Location, RangeState};

/// What is at an address.
enum Found {
    Device(Allocation, Owned),
    Pinned(Pinned),
}

fn find(address: DevicePtr) -> Result<Option<Found>, CuResult> {
    let device = driver::device()?;
    if let Some(allocation) = device.lookup(address)
        && let Some(owned) = allocations::owner(allocation.base)
    {
        return Ok(Some(Found::Device(allocation, owned)));
    }
    Ok(allocations::pinned(address).map(Found::Pinned))
}

/// Writes one attribute.
///
/// # Safety
/// `to` is null or as large as the attribute's type.
unsafe fn answer(
    to: *mut c_void,
    attribute: PointerAttribute,
    address: DevicePtr,
    found: &Found,
) -> Answer {
    let (base, bytes, id, context) = match found {
        Found::Device(allocation, owned) => {
            (allocation.base, allocation.bytes, owned.id, owned.context)
        }
        Found::Pinned(range) => (range.base, range.bytes, range.id, range.context),
    };
    let kind = match found {
        Found::Device(allocation, _) => Some(allocation.kind),
        Found::Pinned(_) => None,
    };
    let pooled = matches!(found, Found::Device(_, owned) if owned.pooled);
    // SAFETY: each type is the one that cuda.h gives for the attribute.
    unsafe {
        match attribute {
            PointerAttribute::CONTEXT => {
                put(to.cast(), ContextHandle(context.handle().unwrap_or(0)))
            }
            PointerAttribute::MEMORY_TYPE => {
                let side = if kind.is_some() {
                    MEMORYTYPE_DEVICE
                } else {
                    MEMORYTYPE_HOST
                };
                put(to.cast::<c_uint>(), side)
            }
            PointerAttribute::DEVICE_POINTER => put(to.cast::<DevicePtr>(), address),
            PointerAttribute::HOST_POINTER if kind == Some(Kind::Device) => {
                Err(CuResult::INVALID_VALUE)
            }
            PointerAttribute::HOST_POINTER => put(to.cast::<DevicePtr>(), address),
            PointerAttribute::SYNC_MEMOPS => {
                let on = matches!(found, Found::Device(_, owned) if owned.synchronous);
                put(to.cast::<bool>(), on)
            }
            PointerAttribute::BUFFER_ID => put(to.cast::<u64>(), id),
            PointerAttribute::IS_MANAGED => put(to.cast::<bool>(), kind == Some(Kind::Managed)),
            PointerAttribute::DEVICE_ORDINAL => put(to.cast::<c_int>(), 0),
            PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE
            | PointerAttribute::IS_GPU_DIRECT_RDMA_CAPABLE => put(to.cast::<bool>(), false),
            PointerAttribute::RANGE_START_ADDR => put(to.cast::<DevicePtr>(), base),
            PointerAttribute::RANGE_SIZE => put(to.cast::<usize>(), bytes as usize),
            PointerAttribute::MAPPED => put(to.cast::<bool>(), true),
            PointerAttribute::ALLOWED_HANDLE_TYPES => put(to.cast::<u64>(), 0),
            // CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE.
            PointerAttribute::ACCESS_FLAGS => put(to.cast::<c_uint>(), 3),
            PointerAttribute::MEMPOOL_HANDLE => put(
                to.cast::<usize>(),
                if pooled { super::pool::DEFAULT.0 } else { 0 },
            ),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

pub(super) unsafe fn pointer(
    to: *mut c_void,
    attribute: PointerAttribute,
    address: DevicePtr,
) -> Answer {
    driver::ready()?;
    usable()?;
    let found = find(address)?.ok_or(CuResult::INVALID_VALUE)?;
    // SAFETY: the program's pointer.
    unsafe { answer(to, attribute, address, &found) }
}

/// Unlike the single form, this one answers for any address: zeros where there is nothing.
pub(super) unsafe fn pointer_all(
    count: c_uint,
    attributes: *mut PointerAttribute,
    data: *mut *mut c_void,
    address: DevicePtr,
) -> Answer {
    driver::ready()?;
    usable()?;
    let count = count as usize;
    // SAFETY: the program's arrays.
    let (attributes, data) = unsafe { (array(attributes, count)?, array(data, count)?) };
    let found = find(address)?;
    for (attribute, to) in attributes.iter().zip(data) {
        let done = match &found {
            // SAFETY: the program's pointer.
            Some(found) => unsafe { answer(*to, *attribute, address, found) },
            None => Err(CuResult::INVALID_VALUE),
        };
        if done.is_err() {
            // SAFETY: the program's pointer, as large as the attribute's type.
            unsafe { nothing(*to, *attribute)? };
        }
    }
    Ok(())
}

/// Writes what stands for nothing.
///
/// # Safety
/// `to` is null or as large as the attribute's type.
unsafe fn nothing(to: *mut c_void, attribute: PointerAttribute) -> Answer {
    // SAFETY: each type is the one that cuda.h gives for the attribute.
    unsafe {
        match attribute {
            PointerAttribute::SYNC_MEMOPS
            | PointerAttribute::IS_MANAGED
            | PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE
            | PointerAttribute::MAPPED
            | PointerAttribute::IS_GPU_DIRECT_RDMA_CAPABLE => put(to.cast::<bool>(), false),
            PointerAttribute::MEMORY_TYPE | PointerAttribute::ACCESS_FLAGS => {
                put(to.cast::<c_uint>(), 0)
            }
            PointerAttribute::DEVICE_ORDINAL => put(to.cast::<c_int>(), DEVICE_INVALID),
            PointerAttribute(1..=17) => put(to.cast::<u64>(), 0),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

pub(super) unsafe fn set_pointer(
    value: *const c_void,
    attribute: PointerAttribute,
    address: DevicePtr,
) -> Answer {
    driver::ready()?;
    usable()?;
    if value.is_null() || attribute != PointerAttribute::SYNC_MEMOPS {
        return Err(CuResult::INVALID_VALUE);
    }
    let Some(Found::Device(allocation, _)) = find(address)? else {
        return Err(CuResult::INVALID_VALUE);
    };
    // SAFETY: the attribute's value is an integer.
    let on = unsafe { value.cast::<c_uint>().read() } != 0;
    allocations::set_synchronous(allocation.base, on);
    Ok(())
}

pub(super) unsafe fn address_range(
    base: *mut DevicePtr,
    bytes: *mut usize,
    address: DevicePtr,
) -> Answer {
    driver::ready()?;
    usable()?;
    let (start, length) = match find(address)? {
        Some(Found::Device(allocation, _)) => (allocation.base, allocation.bytes),
        Some(Found::Pinned(range)) => (range.base, range.bytes),
        None => return Err(CuResult::NOT_FOUND),
    };
    // SAFETY: the program's pointers, either of which may be null.
    unsafe {
        put_if_wanted(base, start);
        put_if_wanted(bytes, length as usize);
    }
    Ok(())
}

/// `CU_DEVICE_*` of a place that is the same in all of a range.
fn ordinal(place: Option<Option<Location>>) -> Device {
    match place {
        Some(Some(Location::Device)) => 0,
        Some(Some(Location::Host)) => DEVICE_CPU,
        Some(None) | None => DEVICE_INVALID,
    }
}

/// `CUmemLocationType` of a place that is the same in all of a range.
fn kind(place: Option<Option<Location>>) -> LocationType {
    match place {
        Some(Some(Location::Device)) => LocationType::DEVICE,
        Some(Some(Location::Host)) => LocationType::HOST,
        Some(None) | None => LocationType::INVALID,
    }
}

/// Writes one attribute of a range.
///
/// # Safety
/// `to` has `bytes` bytes.
unsafe fn range_answer(
    to: *mut c_void,
    bytes: usize,
    attribute: RangeAttribute,
    state: &RangeState,
) -> Answer {
    let word = match attribute {
        RangeAttribute::ACCESSED_BY => {
            let count = bytes / size_of::<Device>();
            if count == 0 || !bytes.is_multiple_of(size_of::<Device>()) {
                return Err(CuResult::INVALID_VALUE);
            }
            for at in 0..count {
                let device = if at == 0 && state.accessed_by_device {
                    0
                } else {
                    DEVICE_INVALID
                };
                // SAFETY: `count` devices fit into the bytes.
                unsafe { put(to.cast::<Device>().wrapping_add(at), device)? };
            }
            return Ok(());
        }
        // Nothing keeps two copies.
        RangeAttribute::READ_MOSTLY => 0,
        RangeAttribute::PREFERRED_LOCATION => ordinal(state.preferred),
        RangeAttribute::LAST_PREFETCH_LOCATION => ordinal(state.last_prefetch),
        RangeAttribute::PREFERRED_LOCATION_TYPE => kind(state.preferred).0 as c_int,
        RangeAttribute::LAST_PREFETCH_LOCATION_TYPE => kind(state.last_prefetch).0 as c_int,
        // Only meaningful for a device, which is number 0.
        RangeAttribute::PREFERRED_LOCATION_ID | RangeAttribute::LAST_PREFETCH_LOCATION_ID => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    if bytes != size_of::<c_int>() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: four bytes.
    unsafe { put(to.cast::<c_int>(), word) }
}

fn state(address: DevicePtr, bytes: usize) -> Result<RangeState, CuResult> {
    driver::ready()?;
    usable()?;
    if bytes == 0 || allocations::covering(address, bytes as u64)?.kind != Kind::Managed {
        return Err(CuResult::INVALID_VALUE);
    }
    driver::device()?
        .range_state(address, bytes as u64)
        .map_err(result_of)
}

pub(super) unsafe fn range(
    to: *mut c_void,
    size: usize,
    attribute: RangeAttribute,
    address: DevicePtr,
    bytes: usize,
) -> Answer {
    // SAFETY: the program's buffer.
    unsafe { range_answer(to, size, attribute, &state(address, bytes)?) }
}

pub(super) unsafe fn range_all(
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut RangeAttribute,
    count: usize,
    address: DevicePtr,
    bytes: usize,
) -> Answer {
    let state = state(address, bytes)?;
    // SAFETY: the program's arrays.
    let (data, sizes, attributes) = unsafe {
        (
            array(data, count)?,
            array(sizes, count)?,
            array(attributes, count)?,
        )
    };
    for ((to, size), attribute) in data.iter().zip(sizes).zip(attributes) {
        // SAFETY: the program's buffer.
        unsafe { range_answer(*to, *size, *attribute, &state)? };
    }
    Ok(())
}
