//! Kernels by handle: their number for the daemon and how their arguments lie.
//!
//! Lookups take no lock: open addressing, a handle is published last. Writers hold the
//! caller's lock. Names are kept, because a daemon that comes back asks for them again
//! when the module may be gone. A module's unloading may let the driver reuse handles, so it
//! makes all entries stale; a stale entry is asked for again at its next launch.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oversub_protocol::event::MAX_LAUNCH_WORDS;

use crate::abi::Handle;
use crate::mapped::{LazyTable, Zeroable};

/// Entries of the table, a power of two; it is full at three quarters.
const ENTRIES: usize = 1 << 14;
/// Most functions tracked.
pub const MAX_FUNCTIONS: u32 = (ENTRIES / 4 * 3) as u32;
/// Bytes kept for names.
const NAME_BYTES: usize = 2 << 20;

/// Parts of one layout: what is left of the entry's 512 bytes.
const MAX_PARTS: usize = 59;

/// Where one argument word comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordSource {
    /// Index of the parameter.
    pub parameter: u16,
    /// Bytes from the start of the parameter.
    pub within: u16,
    /// Bytes from the start of a packed argument buffer.
    pub offset: u16,
    /// Bytes, 1 to 8.
    pub bytes: u8,
}

/// Parameters of one size, one after the other: a kernel may have hundreds, but not of many
/// sizes in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Index of the first parameter.
    pub parameter: u16,
    /// How many there are.
    pub repeat: u16,
    /// Bytes from the start of a packed argument buffer to the first one.
    pub offset: u16,
    /// Bytes of each.
    pub bytes: u16,
}

impl Part {
    fn pack(self) -> u64 {
        u64::from(self.parameter)
            | u64::from(self.repeat) << 16
            | u64::from(self.offset) << 32
            | u64::from(self.bytes) << 48
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        Self {
            parameter: word as u16,
            repeat: (word >> 16) as u16,
            offset: (word >> 32) as u16,
            bytes: (word >> 48) as u16,
        }
    }

    /// Each parameter begins a new word.
    fn sources(self) -> impl Iterator<Item = WordSource> {
        (0..self.repeat).flat_map(move |index| {
            (0..self.bytes).step_by(8).map(move |within| WordSource {
                parameter: self.parameter + index,
                within,
                offset: self.offset + index * self.bytes + within,
                bytes: (self.bytes - within).min(8) as u8,
            })
        })
    }

    /// The first byte behind it in a packed argument buffer.
    fn end(self) -> usize {
        usize::from(self.offset) + usize::from(self.repeat) * usize::from(self.bytes)
    }
}

/// How the arguments of a kernel become words.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    parts: [u64; MAX_PARTS],
    count: u16,
    words: u16,
    /// Parameters; [`Layout::UNKNOWN`] where the driver cannot say.
    pub parameters: u32,
    truncated: bool,
}

impl Layout {
    /// The driver does not say.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Of a kernel of which nothing is known.
    pub const fn unknown() -> Self {
        Self {
            parts: [0; MAX_PARTS],
            count: 0,
            words: 0,
            parameters: Self::UNKNOWN,
            truncated: false,
        }
    }

    /// Of a kernel with no parameters (yet).
    pub const fn empty() -> Self {
        Self {
            parameters: 0,
            ..Self::unknown()
        }
    }

    /// Adds the next parameter, as far as a record has room for its words.
    pub fn push(&mut self, offset: usize, bytes: usize) {
        let parameter = self.parameters;
        self.parameters = self.parameters.saturating_add(1);
        let room = (MAX_LAUNCH_WORDS - usize::from(self.words)) * 8;
        let kept = bytes.min(room);
        // What has a place within the buffer that 16 bits can name.
        let named = offset.saturating_add(kept) <= usize::from(u16::MAX);
        if self.truncated || kept == 0 || !named || parameter >= u32::from(u16::MAX) {
            self.truncated |= bytes > 0;
            return;
        }
        self.truncated = kept < bytes;
        let part = Part {
            parameter: parameter as u16,
            repeat: 1,
            offset: offset as u16,
            bytes: kept as u16,
        };
        let last = usize::from(self.count).checked_sub(1);
        let last = last.and_then(|index| self.parts.get_mut(index));
        if let Some(last) = last
            && let before = Part::unpack(*last)
            && before.bytes == part.bytes
            && before.end() == offset
            && before.parameter + before.repeat == part.parameter
        {
            let repeat = before.repeat + 1;
            *last = Part { repeat, ..before }.pack();
        } else if let Some(next) = self.parts.get_mut(usize::from(self.count)) {
            *next = part.pack();
            self.count += 1;
        } else {
            self.truncated = true;
            return;
        }
        self.words += kept.div_ceil(8) as u16;
    }

    /// The words, in order.
    pub fn sources(&self) -> impl Iterator<Item = WordSource> + '_ {
        let parts = self.parts.iter().take(usize::from(self.count));
        parts.flat_map(|part| Part::unpack(*part).sources())
    }
}

const READY: u32 = 1;
const TRUNCATED: u32 = 2;
const LIBRARY_KERNEL: u32 = 4;

/// One kernel.
#[derive(Debug)]
#[repr(C)]
pub struct Function {
    handle: AtomicU64,
    name_hash: AtomicU64,
    /// [`READY`] and others; 0 with a handle: only known to be a `CUkernel`.
    state: AtomicU32,
    generation: AtomicU32,
    count: AtomicU32,
    parameters: AtomicU32,
    name_start: AtomicU32,
    name_bytes: AtomicU32,
    parts: [AtomicU64; MAX_PARTS],
}

const _: () = assert!(size_of::<Function>() == 512);

// SAFETY: integers and atomics only.
unsafe impl Zeroable for Function {}

impl Function {
    /// The parts of its layout, in order.
    #[inline]
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let parts = self.parts.iter().take(count);
        parts.map(|part| Part::unpack(part.load(Ordering::Relaxed)))
    }

    /// Word sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = WordSource> + '_ {
        self.parts().flat_map(Part::sources)
    }

    /// There are more words than a record can carry.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.state.load(Ordering::Relaxed) & TRUNCATED != 0
    }

    /// Parameters; [`Layout::UNKNOWN`] where the driver cannot say.
    #[inline]
    pub fn parameters(&self) -> u32 {
        self.parameters.load(Ordering::Relaxed)
    }
}

/// The table.
#[derive(Debug, Default)]
pub struct Functions {
    table: LazyTable<Function, ENTRIES>,
    names: LazyTable<u8, NAME_BYTES>,
    names_used: AtomicU32,
    count: AtomicU32,
    generation: AtomicU32,
    untracked: AtomicU64,
}

impl Functions {
    /// Empty; maps nothing.
    pub const fn new() -> Self {
        Self {
            table: LazyTable::new(),
            names: LazyTable::new(),
            names_used: AtomicU32::new(0),
            count: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            untracked: AtomicU64::new(0),
        }
    }

    /// The kernel behind `handle` and its number, if it was launched before and is not stale.
    #[inline]
    pub fn find(&self, handle: Handle) -> Option<(u32, &Function)> {
        let (index, function) = self.entry(handle)?;
        let ready = function.state.load(Ordering::Acquire) & READY != 0;
        let fresh =
            function.generation.load(Ordering::Relaxed) == self.generation.load(Ordering::Relaxed);
        (ready && fresh).then_some((index, function))
    }

    #[inline]
    fn entry(&self, handle: Handle) -> Option<(u32, &Function)> {
        let table = self.table.get()?;
        let mut index = start_of(handle);
        loop {
            let function = table.get(index)?;
            match function.handle.load(Ordering::Acquire) {
                0 => return None,
                found if found == handle as u64 => return Some((index as u32, function)),
                _ => index = (index + 1) % ENTRIES,
            }
        }
    }

    /// Launches of kernels that found no room in the table.
    pub fn untracked(&self) -> u64 {
        self.untracked.load(Ordering::Relaxed)
    }

    /// A launch was not recorded for want of room.
    pub fn count_untracked(&self) {
        self.untracked.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an entry for `handle`, if there is none yet. Under the writers' lock.
    fn claim(&self, handle: Handle) -> Option<(u32, &Function)> {
        if handle == 0 {
            return None;
        }
        if let Some(found) = self.entry(handle) {
            return Some(found);
        }
        if self.count.load(Ordering::Relaxed) >= MAX_FUNCTIONS {
            return None;
        }
        let table = self.table.get_or_map()?;
        let mut index = start_of(handle);
        // Ends: a quarter of the entries is always empty.
        while table.get(index)?.handle.load(Ordering::Relaxed) != 0 {
            index = (index + 1) % ENTRIES;
        }
        let function = table.get(index)?;
        function.handle.store(handle as u64, Ordering::Release);
        self.count.fetch_add(1, Ordering::Relaxed);
        Some((index as u32, function))
    }

    /// Notes that `handle` is a `CUkernel`, not a `CUfunction`. Under the writers' lock.
    pub fn note_library_kernel(&self, handle: Handle) {
        if let Some((_, function)) = self.claim(handle) {
            function.state.fetch_or(LIBRARY_KERNEL, Ordering::Relaxed);
        }
    }

    /// Whether `handle` came from `cuLibraryGetKernel`.
    pub fn is_library_kernel(&self, handle: Handle) -> bool {
        self.entry(handle).is_some_and(|(_, function)| {
            function.state.load(Ordering::Relaxed) & LIBRARY_KERNEL != 0
        })
    }

    /// Learns a kernel. Under the writers' lock. `None`: no room.
    pub fn learn(&self, handle: Handle, name: &[u8], layout: &Layout) -> Option<(u32, &Function)> {
        let (index, function) = self.claim(handle)?;
        let hash = oversub_protocol::encode::name_hash(name);
        let known = function.state.load(Ordering::Relaxed) & READY != 0
            && function.name_hash.load(Ordering::Relaxed) == hash;
        if !known {
            let (start, bytes) = self.keep_name(name);
            function.name_start.store(start, Ordering::Relaxed);
            function.name_bytes.store(bytes, Ordering::Relaxed);
            function.name_hash.store(hash, Ordering::Relaxed);
        }
        for (cell, part) in function.parts.iter().zip(layout.parts) {
            cell.store(part, Ordering::Relaxed);
        }
        function
            .count
            .store(u32::from(layout.count), Ordering::Relaxed);
        function
            .parameters
            .store(layout.parameters, Ordering::Relaxed);
        function
            .generation
            .store(self.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        let kernel = function.state.load(Ordering::Relaxed) & LIBRARY_KERNEL;
        let truncated = if layout.truncated { TRUNCATED } else { 0 };
        function
            .state
            .store(READY | truncated | kernel, Ordering::Release);
        Some((index, function))
    }

    fn keep_name(&self, name: &[u8]) -> (u32, u32) {
        let start = self.names_used.load(Ordering::Relaxed);
        let end = start as usize + name.len();
        let Some(names) = self.names.get_or_map() else {
            return (0, 0);
        };
        if end > names.len() {
            return (0, 0);
        }
        // SAFETY: `start .. end` lies in the mapping and no reader was told of it yet; the
        // writers' lock makes this the only writer. The source is not in the mapping.
        unsafe {
            let target = names.as_ptr().cast_mut().add(start as usize);
            core::ptr::copy_nonoverlapping(name.as_ptr(), target, name.len());
        }
        self.names_used.store(end as u32, Ordering::Relaxed);
        (start, name.len() as u32)
    }

    /// The name of a learnt kernel; empty where there was no room to keep it.
    pub fn name(&self, function: &Function) -> &[u8] {
        let start = function.name_start.load(Ordering::Relaxed) as usize;
        let bytes = function.name_bytes.load(Ordering::Relaxed) as usize;
        let names = self.names.get().unwrap_or_default();
        names.get(start..start + bytes).unwrap_or_default()
    }

    /// All learnt kernels with their numbers. Under the writers' lock.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Function)> {
        let table = self.table.get().unwrap_or_default();
        let ready = |function: &&Function| function.state.load(Ordering::Relaxed) & READY != 0;
        (0..)
            .zip(table)
            .filter(move |(_, function)| ready(function))
    }

    /// A module went: handles may come back with another meaning.
    pub fn make_stale(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline]
fn start_of(handle: Handle) -> usize {
    // Fibonacci hashing: handles are pointers and differ in their middle bits.
    let hash = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (64 - ENTRIES.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests;
