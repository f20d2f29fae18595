//! The device: context, stream, kernels and memory of one program, through cudarc.
//!
//! cudarc reads the driver's status as a Rust enum, so this program's driver must not
//! return a status newer than CUDA 13.0. Programs of other kinds should not copy that.

use std::cell::Cell;
use std::ffi::{CString, c_void};

use anyhow::{Context, bail};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::checksum;
use crate::size::{in_mib, whole_blocks};
use crate::sweep::Step;

/// The kernels, as PTX: see `kernels/build`.
pub const PTX: &str = include_str!("../kernels/kernels.ptx");

/// Threads of a block.
const BLOCK_THREADS: u64 = 256;

/// Words that are copied back at a time: 8 MiB.
const STAGING_WORDS: u64 = 2 << 20;

/// An address on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address(pub u64);

/// The kernels' places in [`Device::functions`], and their names in the PTX.
macro_rules! kernels {
    ($($variant:ident $name:literal),* $(,)?) => {
        #[derive(Clone, Copy)]
        enum Entry { $($variant),* }
        const NAMES: &[&str] = &[$($name),*];
    };
}
kernels! {
    FillU32 "fill_u32",
    FillF32 "fill_f32",
    SweepStep "sweep_step",
    MixRounds "mix_rounds",
    GatherRows "gather_rows",
    GemmTile "gemm_tile",
    Forward "mlp_forward",
    Loss "mlp_loss",
    ActivationGrad "mlp_activation_grad",
    InputGrad "mlp_input_grad",
    WeightGrad "mlp_weight_grad",
    Adam "adam_step",
}

/// The first device, with the kernels loaded and one stream that all work goes to.
pub struct Device {
    ordinal: sys::CUdevice,
    stream: sys::CUstream,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
    footprint: Footprint,
}

/// What is allocated, bytes.
#[derive(Default)]
struct Footprint {
    plain: Cell<u64>,
    stream_ordered: Cell<u64>,
    peak: Cell<u64>,
}

impl Footprint {
    fn change(&self, cell: &Cell<u64>, change: impl FnOnce(u64) -> u64) {
        cell.set(change(cell.get()));
        let now = self.plain.get() + whole_blocks(self.stream_ordered.get());
        self.peak.set(self.peak.get().max(now));
    }
}

/// Dimensions of the perceptron's kernels.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Learning rate with the bias corrections of this step.
    pub rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
}

/// Parameters of a launch, kept where the driver can read them.
macro_rules! launch {
    ($device:expr, $entry:ident, $threads:expr, $($parameter:expr),* $(,)?) => {
        $device.launch(Entry::$entry, $threads, &mut [$(&mut { $parameter } as *mut _ as *mut c_void),*])
    };
}

impl Device {
    /// Opens the first device and loads the kernels.
    pub fn open() -> anyhow::Result<Device> {
        // SAFETY: opens the driver library and closes it again.
        if !unsafe { sys::is_culib_present() } {
            bail!(
                "there is no CUDA driver here: libcuda.so.1 was not found; install NVIDIA's \
                 driver or put a libcuda.so.1 on LD_LIBRARY_PATH"
            );
        }
        result::init()
            .map_err(describe)
            .context("cannot start the CUDA driver")?;
        let ordinal = result::device::get(0)
            .map_err(describe)
            .context("cannot open device 0")?;
        // SAFETY: the device is valid; released in `drop`.
        let context = unsafe { result::primary_ctx::retain(ordinal) }
            .map_err(describe)
            .context("cannot get a context on device 0")?;
        // SAFETY: the context was retained above.
        unsafe { result::ctx::set_current(context) }.map_err(describe)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(describe)
            .context("cannot create a stream")?;
        let image = CString::new(PTX).context("the kernels' PTX holds a zero byte")?;
        // SAFETY: the image ends in a zero byte and the context is current.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(describe)
            .context("cannot load the kernels: the device must be of sm_70 or newer")?;
        let mut functions = Vec::with_capacity(NAMES.len());
        for name in NAMES {
            // SAFETY: the module was loaded above.
            let function = unsafe { result::module::get_function(module, CString::new(*name)?) }
                .map_err(describe)
                .with_context(|| format!("cannot find kernel {name}"))?;
            functions.push(function);
        }
        Ok(Device {
            ordinal,
            stream,
            module,
            functions,
            footprint: Footprint::default(),
        })
    }

    /// Allocates device memory, freed when dropped. Its content is undefined.
    pub fn allocate(&self, bytes: u64) -> anyhow::Result<Memory<'_>> {
        // SAFETY: the context is current; the memory is freed once, in `Memory::drop`.
        let address = unsafe { result::malloc_sync(bytes as usize) }
            .map_err(describe)
            .with_context(|| self.allocation_failed(bytes))?;
        self.footprint
            .change(&self.footprint.plain, |live| live + whole_blocks(bytes));
        Ok(Memory {
            device: self,
            address: Address(address),
            bytes,
        })
    }

    /// Allocates managed memory, freed when dropped. Its content is undefined.
    pub fn allocate_managed(&self, bytes: u64) -> anyhow::Result<Memory<'_>> {
        let global = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        // SAFETY: the context is current; the memory is freed once, in `Memory::drop`.
        let address = unsafe { result::malloc_managed(bytes as usize, global) }
            .map_err(describe)
            .with_context(|| format!("cannot allocate {} of managed memory", in_mib(bytes)))?;
        self.footprint
            .change(&self.footprint.plain, |live| live + whole_blocks(bytes));
        Ok(Memory {
            device: self,
            address: Address(address),
            bytes,
        })
    }

    /// Allocates in stream order; free with [`Device::free_in_stream`].
    pub fn allocate_in_stream(&self, bytes: u64) -> anyhow::Result<Address> {
        // SAFETY: the stream is this device's.
        let address = unsafe { result::malloc_async(self.stream, bytes as usize) }
            .map_err(describe)
            .with_context(|| self.allocation_failed(bytes))?;
        self.footprint
            .change(&self.footprint.stream_ordered, |live| live + bytes);
        Ok(Address(address))
    }

    /// Frees what [`Device::allocate_in_stream`] gave, `bytes` long, in stream order.
    pub fn free_in_stream(&self, address: Address, bytes: u64) -> anyhow::Result<()> {
        // SAFETY: given by `allocate_in_stream`; work on it is in the stream already.
        unsafe { result::free_async(address.0, self.stream) }
            .map_err(describe)
            .with_context(|| format!("cannot free {} of device memory", in_mib(bytes)))?;
        self.footprint
            .change(&self.footprint.stream_ordered, |live| live - bytes);
        Ok(())
    }

    fn allocation_failed(&self, bytes: u64) -> String {
        let room = result::mem_get_info().map_or(String::new(), |(free, total)| {
            format!(
                " ({} of {} are free)",
                in_mib(free as u64),
                in_mib(total as u64)
            )
        });
        format!(
            "cannot allocate {} of device memory{room}; try a smaller --bytes",
            in_mib(bytes)
        )
    }

    /// Most that was allocated at one time, bytes, in whole 2 MiB blocks.
    pub fn peak_bytes(&self) -> u64 {
        self.footprint.peak.get()
    }

    /// Waits for all work.
    pub fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: the stream is this device's.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(describe)
            .context("the device failed to finish its work")
    }

    /// Sets `bytes` bytes to zero, in stream order.
    pub fn clear(&self, address: Address, bytes: u64) -> anyhow::Result<()> {
        // SAFETY: callers pass addresses of live memory of that length.
        unsafe { result::memset_d8_async(address.0, 0, bytes as usize, self.stream) }
            .map_err(describe)
            .context("cannot clear device memory")
    }

    /// Copies words back, after all work before it.
    pub fn read(&self, address: Address, words: &mut [u32]) -> anyhow::Result<()> {
        self.synchronize()?;
        // SAFETY: callers pass addresses of live memory of that length.
        unsafe { result::memcpy_dtoh_sync(words, address.0) }
            .map_err(describe)
            .context("cannot copy from the device")
    }

    /// Checksum of the first `words` words of `memory`, the first standing at `place`.
    pub fn checksum(&self, memory: &Memory<'_>, words: u64, place: u64) -> anyhow::Result<u64> {
        let mut staging = vec![0u32; STAGING_WORDS.min(words) as usize];
        let mut sum = 0u64;
        for first in (0..words).step_by(STAGING_WORDS as usize) {
            let part = &mut staging[..STAGING_WORDS.min(words - first) as usize];
            self.read(memory.word(first), part)?;
            sum = sum.wrapping_add(checksum::of_words(part, place + first));
        }
        Ok(sum)
    }

    fn launch(
        &self,
        entry: Entry,
        threads: u64,
        parameters: &mut [*mut c_void],
    ) -> anyhow::Result<()> {
        let name = NAMES[entry as usize];
        let blocks = u32::try_from(threads.div_ceil(BLOCK_THREADS))
            .with_context(|| format!("{threads} threads are too many for a launch of {name}"))?;
        let function = self.functions[entry as usize];
        let (grid, block) = ((blocks, 1, 1), (BLOCK_THREADS as u32, 1, 1));
        // SAFETY: the wrappers below pass the parameters that the PTX declares, and memory
        // that outlives the work or is freed in stream order.
        unsafe { result::launch_kernel(function, grid, block, 0, self.stream, parameters) }
            .map_err(describe)
            .with_context(|| format!("cannot launch {name}"))
    }
}

/// The kernels: see `kernels/kernels.cu` for what each computes.
impl Device {
    /// Fills `count` words with sequence `seed` from index `first`.
    pub fn fill_u32(&self, out: Address, count: u64, first: u32, seed: u32) -> anyhow::Result<()> {
        launch!(self, FillU32, count, out.0, count, first, seed)
    }

    /// Fills `count` floats with sequence `seed` from index 0, times `scale`.
    pub fn fill_f32(&self, out: Address, count: u64, seed: u32, scale: f32) -> anyhow::Result<()> {
        launch!(self, FillF32, count, out.0, count, 0u32, seed, scale)
    }

    /// One step of the sweep over `count` words.
    pub fn sweep_step(&self, state: Address, count: u64, step: Step) -> anyhow::Result<()> {
        launch!(
            self, SweepStep, count, state.0, count, step.a, step.b, step.c
        )
    }

    /// `rounds` rounds of mixing on `count` words.
    pub fn mix_rounds(
        &self,
        state: Address,
        count: u64,
        rounds: u32,
        key: u32,
    ) -> anyhow::Result<()> {
        launch!(self, MixRounds, count, state.0, count, rounds, key)
    }

    /// Folds hashed rows of `table` into the slots of `out`.
    pub fn gather_rows(
        &self,
        table: Address,
        out: Address,
        rows: u32,
        launch: crate::gather::Launch,
    ) -> anyhow::Result<()> {
        let crate::gather::Launch {
            slots,
            per_slot,
            key,
        } = launch;
        let threads = u64::from(slots) * crate::gather::ROW_WORDS;
        launch!(
            self, GatherRows, threads, table.0, out.0, rows, slots, per_slot, key
        )
    }

    /// Adds the product of tiles `a` and `b` to tile `c`; sizes are m, k and n.
    pub fn gemm_tile(
        &self,
        a: Address,
        b: Address,
        c: Address,
        [m, k, n]: [u32; 3],
    ) -> anyhow::Result<()> {
        launch!(
            self,
            GemmTile,
            u64::from(m) * u64::from(n),
            a.0,
            b.0,
            c.0,
            m,
            k,
            n
        )
    }

    /// A layer forward: weights `w` and input `x` to `pre` and output `y`.
    pub fn mlp_forward(
        &self,
        w: Address,
        x: Address,
        [pre, y]: [Address; 2],
        groups: u32,
    ) -> anyhow::Result<()> {
        launch!(
            self,
            Forward,
            u64::from(groups) * 256,
            w.0,
            x.0,
            pre.0,
            y.0,
            groups
        )
    }

    /// Gradient `dy` and partial sums of the squared error of `x`.
    pub fn mlp_loss(
        &self,
        x: Address,
        dy: Address,
        partial: Address,
        groups: u32,
        seed: u32,
    ) -> anyhow::Result<()> {
        launch!(
            self,
            Loss,
            u64::from(groups) * 256,
            x.0,
            dy.0,
            partial.0,
            groups,
            seed
        )
    }

    /// Gradient `dpre` of the activation.
    pub fn mlp_activation_grad(
        &self,
        pre: Address,
        dy: Address,
        dpre: Address,
        count: u64,
    ) -> anyhow::Result<()> {
        launch!(self, ActivationGrad, count, pre.0, dy.0, dpre.0, count)
    }

    /// Gradient `dx` of a layer's input.
    pub fn mlp_input_grad(
        &self,
        w: Address,
        dpre: Address,
        [dy, dx]: [Address; 2],
        groups: u32,
    ) -> anyhow::Result<()> {
        launch!(
            self,
            InputGrad,
            u64::from(groups) * 256,
            w.0,
            dpre.0,
            dy.0,
            dx.0,
            groups
        )
    }

    /// Gradient `dw` of a layer's weights.
    pub fn mlp_weight_grad(
        &self,
        dpre: Address,
        x: Address,
        dw: Address,
        groups: u32,
    ) -> anyhow::Result<()> {
        launch!(
            self,
            WeightGrad,
            u64::from(groups) * 1024,
            dpre.0,
            x.0,
            dw.0,
            groups
        )
    }

    /// Adam's step on `count` weights `w` with moments `m` and `v` and gradient `g`.
    pub fn adam_step(
        &self,
        [w, m, v, g]: [Address; 4],
        count: u64,
        step: AdamStep,
    ) -> anyhow::Result<()> {
        let AdamStep {
            rate,
            beta1,
            beta2,
            epsilon,
        } = step;
        launch!(
            self, Adam, count, w.0, m.0, v.0, g.0, count, rate, beta1, beta2, epsilon
        )
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Failures at the end change nothing; the driver takes everything back anyway.
        // SAFETY: all three were made in `open` and are used no more.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::module::unload(self.module);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}

/// Device memory that is freed when dropped.
pub struct Memory<'a> {
    device: &'a Device,
    address: Address,
    bytes: u64,
}

impl Memory<'_> {
    /// Its first byte.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its word `index`.
    pub fn word(&self, index: u64) -> Address {
        Address(self.address.0 + index * 4)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let footprint = &self.device.footprint;
        footprint.change(&footprint.plain, |live| live - whole_blocks(self.bytes));
        // A failure here would be a failure of earlier work, which is reported there.
        // SAFETY: given by `malloc_sync` in `allocate`, and freed only here.
        let _ = unsafe { result::free_sync(self.address.0) };
    }
}

/// A driver's error with its name and text.
fn describe(error: DriverError) -> anyhow::Error {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or(String::from("?"), |text| {
            text.to_string_lossy().into_owned()
        })
    };
    anyhow::anyhow!(
        "{} ({})",
        text(error.error_name()),
        text(error.error_string())
    )
}
