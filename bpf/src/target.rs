//! The soft GPU's probe points in a file: where they are and whether probing them is cheap.
//!
//! A probe point is an exported function whose first instruction is the five-byte no-op.
//! The kernel turns that into a call; any other instruction costs two traps per hit, which
//! on a virtual machine is 10 to 25 us, so a file without it is refused. The path came
//! from a client: only regular files are opened, and only headers and symbols are read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol};
use thiserror::Error;

use crate::event::kind;

/// The probe points and the kind of event each one stands for.
pub const POINTS: [(&str, u8); 5] = [
    ("oversub_softgpu_fault", kind::FAULT),
    ("oversub_softgpu_batch", kind::BATCH),
    ("oversub_softgpu_migration", kind::MIGRATION),
    ("oversub_softgpu_populate", kind::POPULATE),
    ("oversub_softgpu_eviction", kind::EVICTION),
];

/// The instruction that makes probing cheap.
#[cfg(target_arch = "x86_64")]
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// The instruction that makes probing cheap.
#[cfg(not(target_arch = "x86_64"))]
const NO_OP: [u8; 4] = 0xd503_201f_u32.to_le_bytes();

/// Why a file cannot be probed.
#[derive(Debug, Error)]
pub enum TargetError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a folder, a pipe or the like.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// It is no object file, or a broken one.
    #[error("{path} is not a readable ELF file: {source}")]
    NotElf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: object::Error,
    },
    /// It has no such function: not the soft GPU, or of another version.
    #[error("{path} has no probe point {symbol}: not oversub's soft GPU of this version")]
    NoPoint {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The function begins with another instruction.
    #[error(
        "{symbol} in {path} begins with {found:02x?} instead of a no-op; probing it would cost \
         tens of microseconds per hit"
    )]
    NotCheap {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
    },
}

/// A file whose probe points were found and checked. Keeps it open, so that what is
/// attached to is what was checked.
#[derive(Debug)]
pub struct Target {
    file: File,
    /// Device and inode: the same file by whatever name.
    pub identity: (u64, u64),
    /// Offset in the file and kind of event of each probe point.
    pub points: Vec<(u64, u8)>,
}

impl Target {
    /// Opens `path` and finds all of [`POINTS`] in it.
    ///
    /// # Errors
    /// It is not the soft GPU, or probing it would be slow.
    pub fn inspect(path: &Path) -> Result<Target, TargetError> {
        let (file, identity) = open(path)?;
        let owned = || path.to_owned();
        let cache = ReadCache::new(&file);
        let elf = object::File::parse(&cache).map_err(|source| TargetError::NotElf {
            path: owned(),
            source,
        })?;
        let mut points = Vec::with_capacity(POINTS.len());
        for (symbol, kind) in POINTS {
            let offset = file_offset(&elf, symbol).ok_or_else(|| TargetError::NoPoint {
                path: owned(),
                symbol,
            })?;
            let mut found = vec![0; NO_OP.len()];
            file.read_exact_at(&mut found, offset)
                .map_err(|source| TargetError::Read {
                    path: owned(),
                    source,
                })?;
            if found != NO_OP {
                return Err(TargetError::NotCheap {
                    path: owned(),
                    symbol,
                    found,
                });
            }
            points.push((offset, kind));
        }
        drop(elf);
        drop(cache);
        Ok(Target {
            file,
            identity,
            points,
        })
    }

    /// A target at known offsets, for what is measured in this very process.
    pub(crate) fn at(path: &Path, points: Vec<(u64, u8)>) -> Result<Target, TargetError> {
        let (file, identity) = open(path)?;
        Ok(Target {
            file,
            identity,
            points,
        })
    }

    /// A name of the open file that nobody can put another file under.
    pub(crate) fn pinned_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

fn open(path: &Path) -> Result<(File, (u64, u64)), TargetError> {
    let read = |source| TargetError::Read {
        path: path.to_owned(),
        source,
    };
    // Without blocking: opening a pipe would wait for a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(TargetError::NotRegular {
            path: path.to_owned(),
        });
    }
    Ok((file, (metadata.dev(), metadata.ino())))
}

/// Where in the file the code of `name` is, by the dynamic symbols, else by the full ones.
fn file_offset<'data>(elf: &impl Object<'data>, name: &str) -> Option<u64> {
    let address = elf
        .dynamic_symbols()
        .chain(elf.symbols())
        .find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?
        .address();
    elf.segments().find_map(|segment| {
        let inside = address.checked_sub(segment.address())?;
        let (start, size) = segment.file_range();
        (inside < size).then(|| start + inside)
    })
}
