//! A process whose descriptor of the driver was taken: what is asked of it and of the
//! driver in its name.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use oversub_bpf::HostFacts;
use oversub_engine::Range;
use oversub_uvm::process::{Mapping, Process, ProcessError};
use oversub_uvm::session::{self, UVM_PATH};
use oversub_uvm::{Uuid, UvmError, tools};

use super::mover::Migrate;
use super::steer::Target;

/// Its address space, by a descriptor of our own.
struct Space(File);

impl Migrate for Space {
    fn migrate(&self, range: Range, to: Uuid) -> Result<(), UvmError> {
        session::migrate(&self.0, range.address, range.bytes, to)
    }
}

/// The process, until this is dropped.
pub(super) struct Taken {
    process: Process,
    space: Arc<Space>,
}

impl Taken {
    /// Takes the descriptor of the process's address space. It has others of the same
    /// device, which the driver refuses to serve: the first that it serves is the one.
    pub fn of(process: Process) -> Result<Self, String> {
        let device = Path::new(UVM_PATH);
        if !device.exists() {
            return Err(format!(
                "{UVM_PATH} is not there: nvidia-uvm is not loaded (`nvidia-modprobe -u -c=0`)"
            ));
        }
        let said = |error: ProcessError| error.to_string();
        let descriptors = process.take_descriptors(device).map_err(said)?;
        // The least that can be asked: events that wait be written to the queues.
        let serves = |file: &File| tools::flush(file).is_ok();
        let space = descriptors
            .into_iter()
            .find(serves)
            .ok_or("none of its descriptors of the driver is an address space")?;
        if process.managed(device).map_err(said)?.is_empty() {
            return Err(
                "it has no managed memory (cuMemAllocManaged, cudaMallocManaged); attach once it \
                 has, or start it with `oversub run`, which makes its memory managed"
                    .to_owned(),
            );
        }
        Ok(Self {
            process,
            space: Arc::new(Space(space)),
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn driver(&self) -> Arc<dyn Migrate> {
        Arc::clone(&self.space) as Arc<dyn Migrate>
    }
}

impl Target for Taken {
    fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    fn managed(&self) -> Option<Vec<Mapping>> {
        self.process.managed(Path::new(UVM_PATH)).ok()
    }

    fn device(&self, processor: u16) -> Option<(Uuid, String)> {
        let gpus = oversub_bpf::gpus::list(HostFacts::driver_version());
        let gpu = match gpus.as_slice() {
            // Without layouts the driver's events do not name the device.
            [only] if processor == 0 => only,
            all => all.iter().find(|gpu| gpu.processor == processor)?,
        };
        let name = gpu.part.as_ref().unwrap_or(&gpu.uuid);
        Some((uuid(name)?, name.clone()))
    }
}

/// The bytes of `GPU-xxxxxxxx-xxxx-...`.
fn uuid(name: &str) -> Option<Uuid> {
    let (_, digits) = name.split_once('-')?;
    let digits: Vec<u32> = digits
        .chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
        .collect();
    Uuid::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::uuid;

    #[test]
    fn a_devices_name_is_its_bytes() {
        let bytes = uuid("GPU-00112233-4455-6677-8899-aabbccddeeff").expect("a name");
        assert_eq!(bytes[..3], [0x00, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xff);
        assert_eq!(uuid("GI-00112233-4455-6677-8899-aabbccddeeff"), Some(bytes));
        for bad in [
            "",
            "GPU",
            "GPU-0011",
            "GPU-x0112233-4455-6677-8899-aabbccddeeff",
        ] {
            assert_eq!(uuid(bad), None, "{bad}");
        }
    }
}
