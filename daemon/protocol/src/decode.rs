//! From slots, which a hostile process may have written, to checked records.
//!
//! Works on a private copy of the slots ([`crate::ring::Reader`] makes one). What is
//! checked here: lengths, counts and that ranges do not wrap. Whether an address belongs
//! to the session is for the session to check. Padding is not looked at.

use core::fmt;

use zerocopy::{IntoBytes, transmute, transmute_ref};

use crate::command::CommandRecord;
use crate::encode::{FIRST_WORDS, function_slots, launch_slots};
use crate::event::{
    CopyRecord, FunctionRecord, Head, Kind, LaunchRecord, MAX_LAUNCH_WORDS, MAX_NAME_BYTES,
    MAX_SLOTS, MemoryRecord, SLOT_PAYLOAD_BYTES, WORDS_PER_SLOT, Words,
};

/// One checked record.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Record<'a> {
    /// A kernel is launched for the first time.
    Function {
        /// The first slot.
        record: &'a FunctionRecord,
        /// Its name, cut at [`MAX_NAME_BYTES`] and before anything that is not UTF-8.
        name: &'a str,
    },
    /// A kernel launch.
    Launch {
        /// The first slot.
        record: &'a LaunchRecord,
        /// All argument words.
        words: &'a [u64],
    },
    /// Memory was obtained from the driver.
    Alloc(&'a MemoryRecord),
    /// And given back; `bytes` may be 0.
    Free(&'a MemoryRecord),
    /// The pool handed out a part of a segment.
    Use(&'a MemoryRecord),
    /// And took it back; `bytes` may be 0.
    Unuse(&'a MemoryRecord),
    /// A copy.
    Copy(&'a CopyRecord),
    /// A memset.
    Memset(&'a CopyRecord),
    /// The host waited for a stream, or for all.
    Sync(&'a MemoryRecord),
    /// A command failed or was declined: its queue in `flags`, its id in `seq`, the
    /// driver's status in `bytes`.
    CommandFailed(&'a MemoryRecord),
    /// A kind that this build does not know.
    Unknown(Head),
}

/// What is wrong with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The record claims another number of slots than it has, or than its content needs.
    Slots {
        /// Its kind.
        kind: Kind,
        /// Slots it should have.
        expected: usize,
        /// Slots it has or claims.
        found: usize,
    },
    /// More words or name bytes than a record can carry.
    Count {
        /// Its kind.
        kind: Kind,
        /// How many it claims.
        found: u32,
    },
    /// Address plus size is beyond the address space, or an allocation is empty.
    Range {
        /// Its kind.
        kind: Kind,
        /// The address.
        address: u64,
        /// The size in bytes.
        bytes: u64,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Slots {
                kind,
                expected,
                found,
            } => {
                write!(
                    f,
                    "record of kind {}: {found} slots instead of {expected}",
                    kind.0
                )
            }
            DecodeError::Count { kind, found } => {
                write!(
                    f,
                    "record of kind {}: {found} items are more than it can carry",
                    kind.0
                )
            }
            DecodeError::Range {
                kind,
                address,
                bytes,
            } => write!(
                f,
                "record of kind {}: {bytes} bytes at {address:#x} are no possible range",
                kind.0
            ),
        }
    }
}

impl core::error::Error for DecodeError {}

impl<'a> Record<'a> {
    /// The record in `slots`, which are exactly its own.
    ///
    /// # Errors
    /// The record breaks a rule of its kind.
    pub fn decode(slots: &'a [Words]) -> Result<Record<'a>, DecodeError> {
        let Some(first) = slots.first() else {
            let kind = Kind(0);
            return Err(DecodeError::Slots {
                kind,
                expected: 1,
                found: 0,
            });
        };
        let head: Head = transmute!(first[0]);
        let kind = head.kind;
        if usize::from(head.slots) != slots.len() || slots.len() > MAX_SLOTS {
            let found = usize::from(head.slots);
            return Err(DecodeError::Slots {
                kind,
                expected: slots.len(),
                found,
            });
        }
        let needs = |expected: usize| {
            let found = slots.len();
            if found == expected {
                Ok(())
            } else {
                Err(DecodeError::Slots {
                    kind,
                    expected,
                    found,
                })
            }
        };
        match kind {
            Kind::FUNCTION => {
                let record: &FunctionRecord = transmute_ref!(first);
                let bytes = count(kind, record.name_bytes, MAX_NAME_BYTES)?;
                needs(function_slots(bytes))?;
                let text = slots
                    .as_bytes()
                    .get(SLOT_PAYLOAD_BYTES..)
                    .unwrap_or_default();
                let text = text.get(..bytes).unwrap_or_default();
                Ok(Record::Function {
                    record,
                    name: valid_text(text),
                })
            }
            Kind::LAUNCH => {
                let record: &LaunchRecord = transmute_ref!(first);
                let words = count(kind, u32::from(record.words), MAX_LAUNCH_WORDS)?;
                needs(launch_slots(words))?;
                // The words of the first slot and of all others lie one after the other.
                let all = slots.as_flattened().get(WORDS_PER_SLOT - FIRST_WORDS..);
                let words = all.unwrap_or_default().get(..words).unwrap_or_default();
                Ok(Record::Launch { record, words })
            }
            Kind::ALLOC | Kind::USE => {
                needs(1)?;
                let record: &MemoryRecord = transmute_ref!(first);
                range(kind, record.address, record.bytes)?;
                if record.bytes == 0 {
                    let (address, bytes) = (record.address, 0);
                    return Err(DecodeError::Range {
                        kind,
                        address,
                        bytes,
                    });
                }
                let make = if kind == Kind::ALLOC {
                    Record::Alloc
                } else {
                    Record::Use
                };
                Ok(make(record))
            }
            Kind::FREE | Kind::UNUSE => {
                needs(1)?;
                let record: &MemoryRecord = transmute_ref!(first);
                range(kind, record.address, record.bytes)?;
                let make = if kind == Kind::FREE {
                    Record::Free
                } else {
                    Record::Unuse
                };
                Ok(make(record))
            }
            Kind::SYNC | Kind::COMMAND_FAILED => {
                needs(1)?;
                let record: &MemoryRecord = transmute_ref!(first);
                let make = if kind == Kind::SYNC {
                    Record::Sync
                } else {
                    Record::CommandFailed
                };
                Ok(make(record))
            }
            Kind::COPY | Kind::MEMSET => {
                needs(1)?;
                let record: &CopyRecord = transmute_ref!(first);
                range(kind, record.dst, record.bytes)?;
                if kind == Kind::MEMSET {
                    return Ok(Record::Memset(record));
                }
                range(kind, record.src, record.bytes)?;
                Ok(Record::Copy(record))
            }
            _ => Ok(Record::Unknown(head)),
        }
    }
}

impl CommandRecord {
    /// The command in a slot, if its range is one of whole 2 MiB blocks and its queue is
    /// one of the executor's. The operation may be unknown.
    ///
    /// # Errors
    /// The command breaks these rules; its kind is given as the operation's number.
    pub fn decode(slot: &Words) -> Result<&CommandRecord, DecodeError> {
        let record: &CommandRecord = transmute_ref!(slot);
        let kind = Kind(record.operation.0);
        let CommandRecord {
            address,
            bytes,
            queue,
            ..
        } = *record;
        range(kind, address, bytes)?;
        let whole = (address | bytes) % crate::BLOCK_BYTES == 0 && bytes != 0;
        if !whole {
            return Err(DecodeError::Range {
                kind,
                address,
                bytes,
            });
        }
        if usize::from(queue) >= crate::command::queue::COUNT {
            return Err(DecodeError::Count {
                kind,
                found: u32::from(queue),
            });
        }
        Ok(record)
    }
}

fn count(kind: Kind, found: u32, most: usize) -> Result<usize, DecodeError> {
    match usize::try_from(found) {
        Ok(count) if count <= most => Ok(count),
        _ => Err(DecodeError::Count { kind, found }),
    }
}

fn range(kind: Kind, address: u64, bytes: u64) -> Result<(), DecodeError> {
    match address.checked_add(bytes) {
        Some(_) => Ok(()),
        None => Err(DecodeError::Range {
            kind,
            address,
            bytes,
        }),
    }
}

/// The longest prefix that is UTF-8: a long name may have been cut inside a character.
pub(crate) fn valid_text(bytes: &[u8]) -> &str {
    let valid = match core::str::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => error.valid_up_to(),
    };
    bytes
        .get(..valid)
        .and_then(|head| core::str::from_utf8(head).ok())
        .unwrap_or_default()
}
