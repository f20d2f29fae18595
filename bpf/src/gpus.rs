//! Which device a processor number of the driver means: its UUID, its part (MIG), its place
//! on the bus. Read from `/proc/driver`; a device is there while some process uses it.

use std::fs;
use std::path::Path;

use crate::offsets::DriverVersion;

/// One device, or part of one, that nvidia-uvm serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// The number that events have.
    pub processor: u16,
    /// As `nvidia-smi -L` writes it.
    pub uuid: String,
    /// The MIG instance, where the device is divided.
    pub part: Option<String>,
    /// Domain, bus, device and function, where the driver says them.
    pub pci: Option<String>,
}

/// From here on events number parts of devices as procfs does; before, whole devices.
const WITH_PARTS: DriverVersion = DriverVersion(550, 40, 0);
/// Numbers that one device takes (`UVM_PARENT_ID_MAX_SUB_PROCESSORS`).
const PARTS: u16 = 8;

/// The devices in use now, by processor number.
pub fn list(version: Option<DriverVersion>) -> Vec<Gpu> {
    list_below(Path::new("/"), version)
}

fn list_below(root: &Path, version: Option<DriverVersion>) -> Vec<Gpu> {
    let links = symbolic_links(&root.join("proc/driver/nvidia-uvm/gpus"));
    let places = places(&root.join("proc/driver/nvidia/gpus"));
    let mut found: Vec<Gpu> = links
        .iter()
        .filter_map(|(name, target)| {
            let number: u16 = name.parse().ok()?;
            let device = target.split('/').next().unwrap_or_default();
            let uuid = device.strip_prefix("UVM-").unwrap_or(device).to_owned();
            let instance = |(other, same): &&(String, String)| {
                same == target && other.trim_start_matches("UVM-").starts_with("GI-")
            };
            let part = links.iter().find(instance);
            let part = part.map(|(name, _)| name.trim_start_matches("UVM-").to_owned());
            let pci = places.iter().find(|(named, _)| *named == uuid);
            let whole = version.is_some_and(|version| version < WITH_PARTS);
            Some(Gpu {
                processor: if whole {
                    number.saturating_sub(1) / PARTS + 1
                } else {
                    number
                },
                pci: pci.map(|(_, place)| place.clone()),
                uuid,
                part,
            })
        })
        .collect();
    found.sort_by_key(|gpu| gpu.processor);
    found
}

/// Names and targets of a folder's symbolic links.
fn symbolic_links(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some((name, target.into_os_string().into_string().ok()?))
        })
        .collect()
}

/// UUIDs and places of the devices that nvidia.ko knows.
fn places(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            let uuid = text
                .lines()
                .find_map(|line| line.strip_prefix("GPU UUID:"))?
                .trim();
            Some((uuid.to_owned(), entry.file_name().into_string().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const UUID: &str = "GPU-11111111-2222-3333-4444-555555555555";

    fn root(name: &str, links: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("ovs-gpus-{name}-{}", std::process::id()));
        let gpus = root.join("proc/driver/nvidia-uvm/gpus");
        let bus = root.join("proc/driver/nvidia/gpus/0000:3b:00.0");
        fs::create_dir_all(&gpus).unwrap();
        fs::create_dir_all(&bus).unwrap();
        for (name, target) in links {
            symlink(target, gpus.join(name)).unwrap();
        }
        let information = format!("Model: \t\t A GPU\nGPU UUID: \t {UUID}\nBus Type: \t PCIe\n");
        fs::write(bus.join("information"), information).unwrap();
        root
    }

    #[test]
    fn a_number_leads_to_uuid_and_bus() {
        let target = format!("{UUID}/0");
        let root = root("plain", &[("9", &target)]);
        let found = list_below(&root, "570.211.01".parse().ok());
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            [Gpu {
                processor: 9,
                uuid: UUID.to_owned(),
                part: None,
                pci: Some("0000:3b:00.0".to_owned())
            }]
        );
    }

    #[test]
    fn before_550_events_number_whole_devices() {
        let target = format!("UVM-{UUID}/0");
        let root = root("old", &[("9", &target)]);
        let found = list_below(&root, "535.183.01".parse().ok());
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((found[0].processor, found[0].uuid.as_str()), (2, UUID));
    }

    #[test]
    fn a_part_of_a_device_is_named_by_its_instance() {
        let (first, second) = (format!("{UUID}/0"), format!("{UUID}/1"));
        let root = root(
            "mig",
            &[
                ("1", &first),
                ("2", &second),
                ("GI-aaaa", &first),
                ("GI-bbbb", &second),
            ],
        );
        let found = list_below(&root, "580.142".parse().ok());
        fs::remove_dir_all(&root).unwrap();
        let parts: Vec<_> = found
            .iter()
            .map(|gpu| (gpu.processor, gpu.part.as_deref()))
            .collect();
        assert_eq!(parts, [(1, Some("GI-aaaa")), (2, Some("GI-bbbb"))]);
    }

    #[test]
    fn without_the_driver_there_are_none() {
        assert_eq!(list_below(Path::new("/nowhere"), None), []);
    }
}
