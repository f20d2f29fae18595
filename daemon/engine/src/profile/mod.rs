//! What was learned of a program, as bytes that outlive its session.
//!
//! Owns the format: version, checksum, limits. Nothing in it is an address: functions go by
//! name, memory by (allocation, offset), where an allocation is known by its size and by how
//! many of that size were alive when it was made. So it serves a program whose memory lies
//! elsewhere, on another machine. What to do with it is the engine's.
//!
//! Layout: [`MAGIC`], version, checksum of the rest, then the fields in the order of
//! [`Profile`], numbers in LEB128.

mod bytes;

use crate::Config;
use crate::hash::mix;
use crate::identity::UNKNOWN;
use bytes::{Reader, Writer, Wrong};

/// First bytes of a profile.
pub const MAGIC: [u8; 8] = *b"ovsprofl";
/// Version of the format. Another one is refused: a profile is learned again in one cycle.
pub const PROFILE_VERSION: u64 = 7;
/// Longest profile that is read or written, bytes.
pub const PROFILE_BYTES: usize = 64 << 20;
/// Most launches in it.
pub(crate) const LAUNCHES: usize = 1 << 16;
/// Most extents of all access sets together, and most places of all corrections.
const EXTENTS: usize = 1 << 20;
/// Most by-value words of one launch.
const WORDS: usize = crate::identity::BY_VALUE;
/// Most blocks of one allocation.
const BLOCKS: u64 = 1 << 40;
/// Most allocations that are used on the host.
pub(crate) const ON_HOST: usize = 1 << 16;

/// Consecutive blocks of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Name of the allocation.
    pub name: u64,
    /// First block, from the allocation's start.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What launches of one execution ID used when it was last launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub exec: u32,
    /// It goes through all parts side by side; otherwise all count as used at its start.
    pub sweep: bool,
    pub parts: Vec<Part>,
}

/// Blocks of a named object (name, first block, how many), and how often in a row they were
/// left alone.
pub(crate) type Place = (u64, u64, u64, u8);

/// How one execution ID's accesses differ from what its arguments say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Corrected {
    pub exec: u32,
    /// Strikes 0: touched though not declared; otherwise declared though left alone.
    pub places: Vec<Place>,
}

/// By-value words of launches that are equal otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skeleton {
    pub hash: u64,
    /// Its last value, and whether it tells launches apart.
    pub words: Vec<(u64, bool)>,
}

/// What was learned of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Functions by the hash of their names, in the order of the engine's numbers.
    pub(crate) functions: Vec<u64>,
    /// Launches' identities by execution ID.
    pub(crate) identities: Vec<u64>,
    pub(crate) skeletons: Vec<Skeleton>,
    /// The newest launches, oldest first: execution ID, and blocks with content after it.
    pub(crate) launches: Vec<(u32, u32)>,
    pub(crate) used: Vec<Used>,
    /// Shortest times of large launches, microseconds.
    pub(crate) times: Vec<(u32, u64)>,
    /// Bytes per thread, by function and word.
    pub(crate) wide: Vec<((u32, u32), u64)>,
    /// Functions that are given pointers into the middle of pool parts.
    pub(crate) tiled: Vec<u32>,
    /// Arguments, by execution ID and word, that reach beyond the next landmark.
    pub(crate) beyond: Vec<(u32, u32)>,
    /// Whether functions use all of what is larger than fits.
    pub(crate) regular: Vec<(u32, bool)>,
    /// Whether they use all of what one of their words points to.
    pub(crate) regular_words: Vec<((u32, u32), bool)>,
    pub(crate) corrected: Vec<Corrected>,
    /// Of arguments that launches use here and there, by function and word: blocks that were
    /// used, left alone before and behind the last one that was, and how often one was used
    /// after all.
    pub(crate) scattered: Vec<((u32, u32), [u32; 4])>,
    /// By [`crate::access::shape`], bytes behind its pointer that a launch was seen to use.
    pub(crate) reaches: Vec<(u64, u64)>,
    /// Names of the allocations that launches use on the host.
    pub(crate) on_host: Vec<u64>,
    /// Prefetched bytes that helped, and that did not.
    pub(crate) prefetched: (u64, u64),
}

/// Why bytes are no profile that can be used. The run goes on cold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// It does not begin as a profile does.
    #[error("this is no profile of oversub")]
    Foreign,
    /// Written by another version of oversub.
    #[error(
        "it has version {0} of the format, this oversub reads version {PROFILE_VERSION}; it will be learned anew"
    )]
    Version(u64),
    /// More bytes than are ever written.
    #[error("it has {0} bytes, more than the {PROFILE_BYTES} that a profile may have")]
    TooLarge(usize),
    /// The checksum is not that of the content.
    #[error("its content is damaged (the checksum differs)")]
    Damaged,
    /// It ends in the middle, or has something behind its end.
    #[error("it ends in the wrong place while {0} are read")]
    Truncated(&'static str),
    /// A count or a number is beyond what the configuration allows.
    #[error("its {0} are beyond the limits of the configuration")]
    Limit(&'static str),
}

impl Profile {
    /// As bytes, at most [`PROFILE_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut content = Writer::default();
        let pair = |w: &mut Writer, &(a, b): &(u32, u64)| {
            w.number(a.into());
            w.number(b);
        };
        content.list(&self.functions, |w, &name| w.fixed(name));
        content.list(&self.identities, |w, &hash| w.fixed(hash));
        content.list(&self.skeletons, |w, skeleton| {
            w.fixed(skeleton.hash);
            w.list(&skeleton.words, |w, &(last, apart)| {
                w.number(last);
                w.number(apart.into());
            });
        });
        content.list(&self.launches, |w, &(exec, live)| {
            w.number(exec.into());
            w.number(live.into());
        });
        content.list(&self.used, |w, used| {
            w.number(used.exec.into());
            w.number(used.sweep.into());
            w.list(&used.parts, |w, part| {
                w.fixed(part.name);
                w.number(part.first);
                w.number(part.count);
            });
        });
        content.list(&self.times, pair);
        content.list(&self.wide, |w, &((function, word), bytes)| {
            w.number(function.into());
            w.number(word.into());
            w.number(bytes);
        });
        content.list(&self.tiled, |w, &function| w.number(function.into()));
        content.list(&self.beyond, |w, &(exec, word)| {
            w.number(exec.into());
            w.number(word.into());
        });
        content.list(&self.regular, |w, &(function, all)| {
            w.number(function.into());
            w.number(all.into());
        });
        content.list(&self.regular_words, |w, &((function, word), all)| {
            w.number(function.into());
            w.number(word.into());
            w.number(all.into());
        });
        content.list(&self.corrected, |w, corrected| {
            w.number(corrected.exec.into());
            w.list(&corrected.places, |w, &(name, first, count, strikes)| {
                w.fixed(name);
                w.number(first);
                w.number(count);
                w.number(strikes.into());
            });
        });
        content.list(&self.scattered, |w, &((function, word), counts)| {
            w.number(function.into());
            w.number(word.into());
            for count in counts {
                w.number(count.into());
            }
        });
        content.list(&self.reaches, |w, &(shape, bytes)| {
            w.fixed(shape);
            w.number(bytes);
        });
        content.list(&self.on_host, |w, &name| w.fixed(name));
        content.number(self.prefetched.0);
        content.number(self.prefetched.1);
        let content = content.0;
        let mut all = Writer(MAGIC.to_vec());
        all.fixed(PROFILE_VERSION);
        all.fixed(checksum(&content));
        all.0.extend_from_slice(&content);
        all.0
    }

    /// From bytes that may be anything, within the limits of `config`.
    ///
    /// # Errors
    /// [`ProfileError`] says what is wrong with them.
    pub fn decode(bytes: &[u8], config: &Config) -> Result<Self, ProfileError> {
        if bytes.len() > PROFILE_BYTES {
            return Err(ProfileError::TooLarge(bytes.len()));
        }
        let content = bytes.strip_prefix(&MAGIC).ok_or(ProfileError::Foreign)?;
        let mut head = Reader(content);
        let version = head.fixed().map_err(|wrong| name_it(wrong, "head"))?;
        if version != PROFILE_VERSION {
            return Err(ProfileError::Version(version));
        }
        let sum = head.fixed().map_err(|wrong| name_it(wrong, "head"))?;
        if sum != checksum(head.0) {
            return Err(ProfileError::Damaged);
        }
        let mut reader = Reader(head.0);
        let profile = Self::content(&mut reader, config)?;
        if !reader.0.is_empty() {
            return Err(ProfileError::Truncated("last bytes"));
        }
        if !profile.is_whole() {
            return Err(ProfileError::Limit("references"));
        }
        Ok(profile)
    }

    /// Keeps it within what is read again, whatever the session's limits were.
    pub(crate) fn trim(&mut self) {
        self.skeletons
            .retain(|skeleton| skeleton.words.len() <= WORDS);
        let mut room = EXTENTS;
        self.used.retain(|used| {
            let fits = used.parts.len() <= room;
            room -= if fits { used.parts.len() } else { 0 };
            fits
        });
        let mut room = EXTENTS;
        self.corrected.retain(|corrected| {
            let fits = corrected.places.len() <= room;
            room -= if fits { corrected.places.len() } else { 0 };
            fits
        });
        // What has no name here cannot be found again.
        let known = self.functions.len() as u32;
        self.wide.retain(|((function, _), _)| *function < known);
        self.scattered
            .retain(|((function, _), _)| *function < known);
        self.tiled.retain(|function| *function < known);
        self.regular.retain(|(function, _)| *function < known);
        self.regular_words
            .retain(|((function, _), _)| *function < known);
    }

    /// Every number names something in it.
    fn is_whole(&self) -> bool {
        let (ids, functions) = (self.identities.len(), self.functions.len());
        let id = |exec: u32| (exec as usize) < ids;
        let function = |number: u32| (number as usize) < functions;
        self.launches.iter().all(|&(e, _)| id(e) || e == UNKNOWN)
            && self.used.iter().all(|used| id(used.exec))
            && self.times.iter().all(|&(e, _)| id(e))
            && self.wide.iter().all(|&((f, _), _)| function(f))
            && self.scattered.iter().all(|&((f, _), _)| function(f))
            && self.tiled.iter().all(|&f| function(f))
            && self.beyond.iter().all(|&(e, _)| id(e))
            && self.regular.iter().all(|&(f, _)| function(f))
            && self.regular_words.iter().all(|&((f, _), _)| function(f))
            && self.corrected.iter().all(|corrected| id(corrected.exec))
    }

    fn content(r: &mut Reader<'_>, config: &Config) -> Result<Self, ProfileError> {
        let ids = config.execution_ids;
        let launches = LAUNCHES.min(config.history_launches);
        let (mut extents, mut places) = (EXTENTS, EXTENTS);
        Ok(Self {
            functions: field("functions", r.list(ids, Reader::fixed))?,
            identities: field("execution IDs", r.list(ids, Reader::fixed))?,
            skeletons: field("words", r.list(ids, skeleton))?,
            launches: field(
                "launches",
                r.list(launches, |r| Ok((r.small()?, r.small()?))),
            )?,
            used: field("access sets", r.list(ids, |r| used(r, &mut extents)))?,
            times: field("times", r.list(ids, |r| Ok((r.small()?, r.number()?))))?,
            wide: field(
                "extents",
                r.list(ids.saturating_mul(4), |r| {
                    Ok(((r.small()?, r.small()?), r.number()?))
                }),
            )?,
            tiled: field("functions of tiles", r.list(ids, Reader::small))?,
            beyond: field(
                "wide arguments",
                r.list(ids.saturating_mul(4), |r| Ok((r.small()?, r.small()?))),
            )?,
            regular: field(
                "regular functions",
                r.list(ids, |r| Ok((r.small()?, r.flag()?))),
            )?,
            regular_words: field(
                "regular arguments",
                r.list(ids.saturating_mul(4), |r| {
                    Ok(((r.small()?, r.small()?), r.flag()?))
                }),
            )?,
            corrected: field("corrections", r.list(ids, |r| corrected(r, &mut places)))?,
            scattered: field(
                "scattered arguments",
                r.list(ids.saturating_mul(4), |r| {
                    let key = (r.small()?, r.small()?);
                    Ok((key, [r.small()?, r.small()?, r.small()?, r.small()?]))
                }),
            )?,
            reaches: field(
                "reaches",
                r.list(ids.saturating_mul(4), |r| Ok((r.fixed()?, r.number()?))),
            )?,
            on_host: field(
                "allocations used on the host",
                r.list(ON_HOST, Reader::fixed),
            )?,
            prefetched: field(
                "prefetched bytes",
                r.number().and_then(|helped| Ok((helped, r.number()?))),
            )?,
        })
    }
}

fn skeleton(r: &mut Reader<'_>) -> Result<Skeleton, Wrong> {
    Ok(Skeleton {
        hash: r.fixed()?,
        words: r.list(WORDS, |r| Ok((r.number()?, r.flag()?)))?,
    })
}

fn used(r: &mut Reader<'_>, room: &mut usize) -> Result<Used, Wrong> {
    let (exec, sweep) = (r.small()?, r.flag()?);
    let parts = r.list(*room, |r| {
        Ok(Part {
            name: r.fixed()?,
            first: r.below(BLOCKS)?,
            count: r.below(BLOCKS)?,
        })
    })?;
    *room -= parts.len();
    Ok(Used { exec, sweep, parts })
}

fn corrected(r: &mut Reader<'_>, room: &mut usize) -> Result<Corrected, Wrong> {
    let exec = r.small()?;
    let places = r.list(*room, |r| {
        let blocks = (r.fixed()?, r.below(BLOCKS)?, r.below(BLOCKS)?);
        Ok((blocks.0, blocks.1, blocks.2, r.below(256)? as u8))
    })?;
    *room -= places.len();
    Ok(Corrected { exec, places })
}

fn field<T>(name: &'static str, read: Result<T, Wrong>) -> Result<T, ProfileError> {
    read.map_err(|wrong| name_it(wrong, name))
}

fn name_it(wrong: Wrong, name: &'static str) -> ProfileError {
    match wrong {
        Wrong::Short => ProfileError::Truncated(name),
        Wrong::Large => ProfileError::Limit(name),
    }
}

/// Against damage, not against forgery: whoever may write the file may write any plan.
fn checksum(content: &[u8]) -> u64 {
    let words = content.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(mix(0, content.len() as u64), mix)
}

#[cfg(test)]
mod tests;
