//! Kernel launches. The path is short: no allocation for up to sixteen parameters, one
//! lock (the stream's), no system call unless an idle engine must be woken.

use std::ffi::{c_uint, c_void};
use std::sync::Mutex;

use super::device::{MAX_BLOCK, MAX_BLOCK_THREADS, MAX_GRID, MAX_SHARED_BYTES};
use super::{Answer, DefaultStream, array, stream};
use crate::abi::{
    CuResult, FunctionHandle, LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE,
    LAUNCH_PARAM_END, LaunchAttribute, LaunchConfig, StreamHandle,
};
use crate::kernels::{KERNELS, Kernel, Param, Shape};
use crate::memory::Device;
use crate::module::{FUNCTIONS, Function};
use crate::stream::op::{INLINE_PARAMETERS, Op, Words};
use crate::{allocations, driver};

/// Entries of an `extra` list at most; the header knows three.
const EXTRA_ENTRIES: usize = 8;

#[expect(clippy::too_many_arguments, reason = "the driver's interface")]
#[inline]
pub(super) unsafe fn kernel(
    default: DefaultStream,
    function: FunctionHandle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    handle: StreamHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let stream = stream(default, handle)?;
    let function = FUNCTIONS.get(function.0).ok_or(CuResult::INVALID_HANDLE)?;
    let shape = Shape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
    };
    check_shape(&shape)?;
    if !std::ptr::eq(function.context, stream.context()) {
        return Err(CuResult::INVALID_HANDLE);
    }
    let kernel = runnable(function)?;
    // SAFETY: the program's parameters, as `cuLaunchKernel` defines them.
    let source = unsafe { Source::new(function, parameters, extra)? };
    let device = driver::device()?;
    let count = kernel.params.len();
    let op = if count <= INLINE_PARAMETERS {
        let mut words = [0u64; INLINE_PARAMETERS];
        // SAFETY: as above.
        match unsafe { source.read(device, function, kernel, &mut words[..count]) } {
            Ok(()) => Op::Kernel {
                kernel,
                shape,
                words: Words::Inline(words, count as u8),
            },
            Err(Stray(address)) => Op::Fault { kernel, address },
        }
    } else {
        let mut words = vec![0u64; count].into_boxed_slice();
        // SAFETY: as above.
        match unsafe { source.read(device, function, kernel, &mut words) } {
            Ok(()) => Op::Kernel {
                kernel,
                shape,
                words: Words::Boxed(words),
            },
            Err(Stray(address)) => Op::Fault { kernel, address },
        }
    };
    stream.push(op);
    Ok(())
}

/// The soft GPU's kernels have no barrier over the grid, so that a cooperative launch of
/// one is a plain launch.
#[expect(clippy::too_many_arguments, reason = "the driver's interface")]
pub(super) unsafe fn cooperative(
    default: DefaultStream,
    function: FunctionHandle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    handle: StreamHandle,
    parameters: *mut *mut c_void,
) -> Answer {
    let none = std::ptr::null_mut();
    // SAFETY: as this call.
    unsafe {
        kernel(
            default,
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            handle,
            parameters,
            none,
        )
    }
}

pub(super) unsafe fn kernel_ex(
    default: DefaultStream,
    config: *const LaunchConfig,
    function: FunctionHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    driver::ready()?;
    if config.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null; the program's configuration.
    let config = unsafe { config.read() };
    if config.attribute_count > 0 {
        // SAFETY: the configuration's array.
        let attributes = unsafe { array(config.attributes, config.attribute_count as usize)? };
        attributes.iter().try_for_each(check_attribute)?;
    }
    let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
    let stream = config.stream;
    // SAFETY: as this call.
    unsafe {
        kernel(
            default,
            function,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            config.shared_bytes,
            stream,
            parameters,
            extra,
        )
    }
}

/// Takes the attributes that change nothing for a kernel on this device.
fn check_attribute(attribute: &LaunchAttribute) -> Answer {
    match attribute.id {
        // IGNORE, ACCESS_POLICY_WINDOW, COOPERATIVE, SYNCHRONIZATION_POLICY,
        // CLUSTER_SCHEDULING_POLICY_PREFERENCE, PROGRAMMATIC_STREAM_SERIALIZATION (launches
        // may overlap, and do not), PRIORITY, MEM_SYNC_DOMAIN_MAP, MEM_SYNC_DOMAIN.
        0..=3 | 5 | 6 | 8..=10 => Ok(()),
        // CLUSTER_DIMENSION: three words; one block is no cluster.
        4 if attribute.value[0] == 1 | 1 << 32 && attribute.value[1] as u32 == 1 => Ok(()),
        4 => super::refuse("cuLaunchKernelEx with clusters"),
        _ => super::refuse("cuLaunchKernelEx with an unknown attribute"),
    }
}

#[inline]
fn check_shape(shape: &Shape) -> Answer {
    let within = |sizes: [u32; 3], most: [u32; 3]| {
        sizes
            .iter()
            .zip(most)
            .all(|(size, most)| (1..=most).contains(size))
    };
    let threads: u64 = shape.block.iter().map(|n| *n as u64).product();
    let fine = within(shape.grid, MAX_GRID)
        && within(shape.block, MAX_BLOCK)
        && threads <= MAX_BLOCK_THREADS as u64
        && shape.shared_bytes <= MAX_SHARED_BYTES;
    if fine {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// The function's code.
#[inline]
fn runnable(function: &Function) -> Result<&'static Kernel, CuResult> {
    match function.kernel {
        Some(kernel) if function.fits => Ok(kernel),
        _ => Err(unknown(function)),
    }
}

/// Says, once for each name, why a kernel cannot run.
#[cold]
fn unknown(function: &Function) -> CuResult {
    static SAID: Mutex<Vec<std::ffi::CString>> = Mutex::new(Vec::new());
    let mut said = SAID
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !said.contains(&function.name) {
        said.push(function.name.clone());
        let name = function.name.to_string_lossy();
        let known: Vec<_> = KERNELS.iter().map(|k| k.name).collect();
        let known = known.join(", ");
        match function.kernel {
            None => eprintln!(
                "soft GPU: kernel \"{name}\" cannot run here; it has only these: {known}. \
                 Run the program on a GPU"
            ),
            Some(kernel) => eprintln!(
                "soft GPU: kernel \"{name}\" is declared with other parameters than the one \
                 that it has ({:?}); rename it or run the program on a GPU",
                kernel.params
            ),
        }
    }
    crate::stats::count_unsupported("cuLaunchKernel of an unknown kernel");
    CuResult::NOT_SUPPORTED
}

/// An address that is neither the device's nor pinned.
struct Stray(u64);

/// Where the parameters of a launch are.
enum Source {
    /// `kernelParams`: an address for each.
    Each(*const *const u8),
    /// `extra`: one buffer.
    Buffer(*const u8),
}

impl Source {
    /// Finds the parameters.
    ///
    /// # Safety
    /// The pointers are as `cuLaunchKernel` defines them.
    #[inline]
    unsafe fn new(
        function: &Function,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Source, CuResult> {
        match (parameters.is_null(), extra.is_null()) {
            (false, false) => Err(CuResult::INVALID_VALUE),
            (false, true) => {
                let each = parameters as *const *const u8;
                for at in 0..function.parameters.len() {
                    // SAFETY: an address for each parameter.
                    if unsafe { each.add(at).read() }.is_null() {
                        return Err(CuResult::INVALID_VALUE);
                    }
                }
                Ok(Source::Each(each))
            }
            // SAFETY: by this function's contract.
            (true, false) => unsafe { Source::from_extra(function, extra) },
            (true, true) if function.parameters.is_empty() => Ok(Source::Buffer(std::ptr::null())),
            (true, true) => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Reads an `extra` list: names and values, up to `CU_LAUNCH_PARAM_END`.
    #[cold]
    unsafe fn from_extra(function: &Function, extra: *mut *mut c_void) -> Result<Source, CuResult> {
        let (mut buffer, mut bytes) = (std::ptr::null::<u8>(), None);
        for entry in 0..EXTRA_ENTRIES {
            // SAFETY: the list goes on until its end was read.
            let name = unsafe { extra.add(2 * entry).read() } as usize;
            if name == LAUNCH_PARAM_END {
                let enough = bytes.is_some_and(|b| b >= function.parameter_bytes());
                return match enough && !buffer.is_null() {
                    true => Ok(Source::Buffer(buffer)),
                    false => Err(CuResult::INVALID_VALUE),
                };
            }
            // SAFETY: every name but the end has a value.
            let value = unsafe { extra.add(2 * entry + 1).read() };
            match name {
                LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast(),
                LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                    // SAFETY: the value is the address of a size.
                    bytes = Some(unsafe { value.cast::<usize>().read_unaligned() });
                }
                _ => return Err(CuResult::INVALID_VALUE),
            }
        }
        Err(CuResult::INVALID_VALUE)
    }

    /// Copies the parameters, with pointers as the kernel needs them.
    ///
    /// # Safety
    /// As [`Source::new`]; `words` has one place for each parameter.
    #[inline]
    unsafe fn read(
        &self,
        device: &Device,
        function: &Function,
        kernel: &Kernel,
        words: &mut [u64],
    ) -> Result<(), Stray> {
        let declared = function.parameters.iter().zip(kernel.params);
        for (at, (word, (parameter, kind))) in words.iter_mut().zip(declared).enumerate() {
            let from = match self {
                // SAFETY: an address for each parameter, checked in `new`.
                Source::Each(each) => unsafe { each.add(at).read() },
                // SAFETY: the buffer was found large enough for all parameters.
                Source::Buffer(buffer) => unsafe { buffer.add(parameter.offset) },
            };
            *word = match kind {
                Param::Pointer => {
                    // SAFETY: the parameter has eight bytes, by the module's check.
                    let address = unsafe { from.cast::<u64>().read_unaligned() };
                    pointer(device, address)?
                }
                // SAFETY: as above.
                Param::U64 => unsafe { from.cast::<u64>().read_unaligned() },
                // SAFETY: the parameter has four bytes.
                Param::U32 | Param::F32 => unsafe { from.cast::<u32>().read_unaligned() as u64 },
            };
        }
        Ok(())
    }
}

/// Where a kernel finds an address: the device's own, or pinned host memory.
#[inline]
fn pointer(device: &Device, address: u64) -> Result<u64, Stray> {
    match device.to_device_view(address) {
        Some(view) => Ok(view),
        None if allocations::pinned(address).is_some() => Ok(address),
        None => Err(Stray(address)),
    }
}
