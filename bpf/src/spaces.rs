//! Which process has which of the driver's address spaces, asked of the kernel.
//!
//! Goes through the open files of all processes, once per call; for address spaces that
//! are older than the probes. Takes about a microsecond for each open file of the host.

use std::fs;
use std::io::Read;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::load::{explain, storage};
use crate::spaces_skeleton::{SpacesSkel, SpacesSkelBuilder, types};

/// Kind of an open file of the driver, in the low bits of what it keeps (uvm.c,
/// `uvm_fd_type_t`).
const KIND_BITS: u64 = 7;
/// An address space.
const KIND_SPACE: u64 = 2;

/// `struct ovs_space_file`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFile {
    private_data: u64,
    tgid: u32,
    fd: u32,
}

const _: () = assert!(size_of::<RawFile>() == size_of::<types::ovs_space_file>());
const _: () = assert!(
    std::mem::offset_of!(RawFile, tgid) == std::mem::offset_of!(types::ovs_space_file, tgid)
);

/// An address space in a process's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenSpace {
    /// The driver's address space, as events name it.
    pub space: u64,
    /// Process, in the initial pid namespace.
    pub tgid: u32,
    /// Descriptor there.
    pub fd: u32,
}

/// The program that goes through the files.
pub(crate) struct Spaces {
    skeleton: SpacesSkel<'static>,
}

impl Spaces {
    /// Loads it for the loaded driver.
    pub fn load() -> Result<Spaces, String> {
        let failed = |what: &'static str| move |error: libbpf_rs::Error| explain(what, &error);
        let devices = fs::read_to_string("/proc/devices")
            .map_err(|error| format!("/proc/devices: {error}"))?;
        let major =
            major(&devices, "nvidia-uvm").ok_or("/proc/devices does not name nvidia-uvm")?;
        let mut open = SpacesSkelBuilder::default()
            .open(storage())
            .map_err(failed("opening the program that lists address spaces"))?;
        let Some(constants) = open.maps.rodata_data.as_deref_mut() else {
            return Err("the program that lists address spaces has no constants".into());
        };
        // Minor 0: address spaces; 1 is the tools'. The kernel's own form of a device number.
        constants.ovs_device = major << 20;
        let skeleton = open
            .load()
            .map_err(failed("loading the program that lists address spaces"))?;
        Ok(Spaces { skeleton })
    }

    /// All address spaces of all processes, by process.
    pub fn list(&self) -> Result<Vec<OpenSpace>, String> {
        let failed = |what: &'static str| move |error: libbpf_rs::Error| explain(what, &error);
        let link = self
            .skeleton
            .progs
            .uvm_spaces
            .attach_iter_with_opts(libbpf_rs::IterOpts::None)
            .map_err(failed("attaching the iterator over open files"))?;
        let mut iterator =
            libbpf_rs::Iter::new(&link).map_err(failed("starting the iterator over open files"))?;
        let mut bytes = Vec::new();
        iterator
            .read_to_end(&mut bytes)
            .map_err(|error| format!("reading the iterator over open files: {error}"))?;
        Ok(decode(&bytes))
    }
}

/// Those records that are address spaces.
fn decode(bytes: &[u8]) -> Vec<OpenSpace> {
    let (records, _) = bytes.as_chunks::<{ size_of::<RawFile>() }>();
    let spaces = records
        .iter()
        .filter_map(|record| RawFile::read_from_bytes(record).ok());
    spaces
        .filter(|raw| raw.private_data & KIND_BITS == KIND_SPACE)
        .map(|raw| OpenSpace {
            space: raw.private_data & !KIND_BITS,
            tgid: raw.tgid,
            fd: raw.fd,
        })
        .collect()
}

/// Major number of a character device by name.
fn major(devices: &str, name: &str) -> Option<u32> {
    devices
        .lines()
        .take_while(|line| !line.starts_with("Block"))
        .find_map(|line| {
            let (number, found) = line.trim().split_once(' ')?;
            (found == name).then(|| number.parse().ok())?
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_number_is_that_of_the_character_device_of_that_very_name() {
        let devices = "Character devices:\n  1 mem\n195 nvidia\n507 nvidia-uvm-x\n508 nvidia-uvm\n\n\
                       Block devices:\n  7 loop\n";
        assert_eq!(major(devices, "nvidia-uvm"), Some(508));
        assert_eq!(major(devices, "loop"), None);
        assert_eq!(major("", "nvidia-uvm"), None);
    }

    #[test]
    fn only_files_that_are_address_spaces_count() {
        let record = |private_data: u64, tgid: u32| {
            let mut bytes = private_data.to_ne_bytes().to_vec();
            bytes.extend(tgid.to_ne_bytes());
            bytes.extend(5u32.to_ne_bytes());
            bytes
        };
        let space = 0xffff_8881_2345_6000;
        let mut bytes = record(space | KIND_SPACE, 7);
        // Tied memory, a fresh file, and a cut record.
        bytes.extend(record(space | 3, 8));
        bytes.extend(record(0, 9));
        bytes.extend(&record(space | KIND_SPACE, 10)[..9]);
        assert_eq!(
            decode(&bytes),
            [OpenSpace {
                space,
                tgid: 7,
                fd: 5
            }]
        );
    }
}
