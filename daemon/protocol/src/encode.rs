//! Laying records out in slots, for the writing side. No allocation, no panic.

use zerocopy::{IntoBytes, transmute, transmute_ref};

use crate::command::CommandRecord;
use crate::event::{
    CopyRecord, FunctionRecord, Head, Kind, LaunchRecord, MAX_LAUNCH_WORDS, MAX_NAME_BYTES,
    MAX_SLOTS, MemoryRecord, SLOT_PAYLOAD_BYTES, WORDS_PER_SLOT, Words,
};
use crate::ring::Encode;

/// Argument words that the first slot of a launch holds.
pub(crate) const FIRST_WORDS: usize = 2;

impl Encode for MemoryRecord {
    #[inline]
    fn slots(&self) -> usize {
        1
    }

    #[inline]
    fn slot(&self, _index: usize) -> Words {
        transmute!(*self)
    }
}

impl Encode for CopyRecord {
    #[inline]
    fn slots(&self) -> usize {
        1
    }

    #[inline]
    fn slot(&self, _index: usize) -> Words {
        transmute!(*self)
    }
}

impl Encode for CommandRecord {
    #[inline]
    fn slots(&self) -> usize {
        1
    }

    #[inline]
    fn slot(&self, _index: usize) -> Words {
        transmute!(*self)
    }
}

impl MemoryRecord {
    /// A record of `kind`, one of those that a [`MemoryRecord`] carries.
    #[inline]
    pub fn new(
        kind: Kind,
        stream: u8,
        flags: u32,
        seq: u64,
        address: u64,
        bytes: u64,
    ) -> MemoryRecord {
        let head = Head {
            kind,
            slots: 1,
            stream,
            flags,
        };
        MemoryRecord {
            head,
            seq,
            address,
            bytes,
            reserved: [0; 3],
        }
    }
}

impl CopyRecord {
    /// A copy.
    #[inline]
    pub fn copy(stream: u8, flags: u32, seq: u64, dst: u64, src: u64, bytes: u64) -> CopyRecord {
        let head = Head {
            kind: Kind::COPY,
            slots: 1,
            stream,
            flags,
        };
        CopyRecord {
            head,
            seq,
            dst,
            src,
            bytes,
            reserved: [0; 2],
        }
    }

    /// A memset.
    #[inline]
    pub fn memset(stream: u8, flags: u32, seq: u64, dst: u64, bytes: u64) -> CopyRecord {
        let head = Head {
            kind: Kind::MEMSET,
            slots: 1,
            stream,
            flags,
        };
        CopyRecord {
            head,
            seq,
            dst,
            src: 0,
            bytes,
            reserved: [0; 2],
        }
    }
}

/// A launch with its argument words, ready to be pushed.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The [`LaunchRecord`], composed in whole words: small fields stored one by one and
    /// read back as words would make every launch wait for its own stores.
    first: Words,
    slots: u8,
    words: &'a [u64],
}

/// What a launch record says besides its argument words.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape {
    /// Stream slot.
    pub stream: u8,
    /// [`LaunchRecord::FLAG_CAPTURED`] and the like.
    pub flags: u32,
    /// Position in program order.
    pub seq: u64,
    /// Index from a [`FunctionRecord`].
    pub function: u32,
    /// Grid in thread blocks.
    pub grid: [u32; 3],
    /// Thread block in threads.
    pub block: [u16; 3],
}

impl<'a> Launch<'a> {
    /// A launch; words beyond [`MAX_LAUNCH_WORDS`] are cut off and flagged.
    #[inline]
    pub fn new(shape: LaunchShape, words: &'a [u64]) -> Launch<'a> {
        let LaunchShape {
            stream,
            mut flags,
            seq,
            function,
            grid,
            block,
        } = shape;
        let kept = words.len().min(MAX_LAUNCH_WORDS);
        if kept < words.len() {
            flags |= LaunchRecord::FLAG_TRUNCATED;
        }
        let words = words.get(..kept).unwrap_or(words);
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        // At most MAX_SLOTS and MAX_LAUNCH_WORDS: both fit.
        let slots = launch_slots(kept) as u8;
        let head = Head {
            kind: Kind::LAUNCH,
            slots,
            stream,
            flags,
        };
        let first = [
            transmute!(head),
            seq,
            transmute!([grid[0], grid[1]]),
            transmute!([grid[2], function]),
            transmute!([block[0], block[1], block[2], kept as u16]),
            word(0),
            word(1),
        ];
        Launch {
            first,
            slots,
            words,
        }
    }

    /// The first slot.
    pub fn record(&self) -> &LaunchRecord {
        transmute_ref!(&self.first)
    }

    /// Argument words that come after the first slot and `before` further ones.
    #[inline]
    fn words_from(&self, before: usize) -> &[u64] {
        let from = FIRST_WORDS + before * WORDS_PER_SLOT;
        self.words.get(from..).unwrap_or_default()
    }
}

impl Encode for Launch<'_> {
    #[inline]
    fn slots(&self) -> usize {
        usize::from(self.slots)
    }

    #[inline]
    fn slot(&self, index: usize) -> Words {
        let Some(before) = index.checked_sub(1) else {
            return self.first;
        };
        let mut slot = Words::default();
        for (target, word) in slot.iter_mut().zip(self.words_from(before)) {
            *target = *word;
        }
        slot
    }

    #[cfg(not(loom))]
    #[inline]
    fn put(&self, index: usize, place: &crate::sync::Payload) {
        match index.checked_sub(1) {
            None => place.store(&self.first),
            // From where they are: a copy in between would be read back before it is stored.
            Some(before) => place.store_some(self.words_from(before)),
        }
    }
}

/// Slots of a launch with that many argument words.
#[inline]
pub const fn launch_slots(words: usize) -> usize {
    1 + words.saturating_sub(FIRST_WORDS).div_ceil(WORDS_PER_SLOT)
}

/// A function with its name, ready to be pushed.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    record: FunctionRecord,
    name: &'a [u8],
}

impl<'a> Function<'a> {
    /// A function; a name longer than [`MAX_NAME_BYTES`] is cut, its hash stays whole.
    /// `parameters`: how many the kernel has, `u32::MAX` where the driver cannot say.
    pub fn new(function: u32, parameters: u32, name: &'a [u8]) -> Function<'a> {
        let name_hash = name_hash(name);
        let name = name.get(..MAX_NAME_BYTES).unwrap_or(name);
        // At most MAX_SLOTS: it fits.
        let slots = function_slots(name.len()) as u8;
        let record = FunctionRecord {
            head: Head {
                kind: Kind::FUNCTION,
                slots,
                stream: u8::MAX,
                flags: parameters,
            },
            function,
            name_bytes: name.len() as u32,
            name_hash,
            reserved: [0; 4],
        };
        Function { record, name }
    }

    /// The first slot.
    pub fn record(&self) -> &FunctionRecord {
        &self.record
    }
}

impl Encode for Function<'_> {
    #[inline]
    fn slots(&self) -> usize {
        usize::from(self.record.head.slots)
    }

    #[inline]
    fn slot(&self, index: usize) -> Words {
        let Some(before) = index.checked_sub(1) else {
            return transmute!(self.record);
        };
        let mut slot = Words::default();
        let text = self.name.iter().skip(before * SLOT_PAYLOAD_BYTES);
        for (target, byte) in slot.as_mut_bytes().iter_mut().zip(text) {
            *target = *byte;
        }
        slot
    }
}

/// Slots of a function whose name has that many bytes.
#[inline]
pub const fn function_slots(name_bytes: usize) -> usize {
    1 + name_bytes.div_ceil(SLOT_PAYLOAD_BYTES)
}

/// The hash that tells long names apart: FNV-1a, 64 bits.
pub fn name_hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

const _: () = assert!(launch_slots(MAX_LAUNCH_WORDS) == MAX_SLOTS);
const _: () = assert!(function_slots(MAX_NAME_BYTES) <= MAX_SLOTS && MAX_SLOTS <= u8::MAX as usize);
// All that kernels could have before CUDA 12.1, in parameters of whole words.
const _: () = assert!(MAX_LAUNCH_WORDS * 8 >= 4096);
