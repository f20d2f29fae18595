//! What this host can do for the probes, as facts. No choice is made here.
//!
//! Everything is read from `/proc` and `/sys`; a fact that cannot be read stays at its
//! default, which says that nothing works.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use libbpf_rs::HasSize;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;

use crate::offsets::{DriverVersion, KernelSizes};
use crate::probe::uvm_symbols;

/// Capability numbers (linux/capability.h).
pub(crate) const CAP_DAC_READ_SEARCH: u32 = 2;
pub(crate) const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// What the host can do. The default: nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostFacts {
    /// Release of the kernel, major and minor.
    pub kernel: (u32, u32),
    /// This process has CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN.
    pub may_bpf: bool,
    /// The kernel describes its own types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// The kernel can probe user functions.
    pub uprobes: bool,
    /// The kernel can probe its own functions.
    pub kprobes: bool,
    /// Lockdown forbids reading kernel memory (mode `confidentiality`).
    pub confidential: bool,
    /// The nvidia-uvm module, where it is loaded.
    pub uvm: Option<UvmFacts>,
}

/// What is known of the loaded nvidia-uvm module.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UvmFacts {
    /// Its version; `None`: it does not say, or says something unreadable.
    pub version: Option<DriverVersion>,
    /// Those functions that the probes want and the module has.
    pub symbols: BTreeSet<&'static str>,
    /// Those of them that the module's own type information describes.
    pub described: BTreeSet<&'static str>,
    /// Sizes of the running kernel's structures that lie inside the module's.
    pub sizes: Option<KernelSizes>,
}

/// One loading of the module: another one after it was unloaded and loaded again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loading(u64, u64);

impl Loading {
    /// The module's present loading; `None`: it is not loaded.
    pub fn now() -> Option<Loading> {
        use std::os::unix::fs::MetadataExt;
        // sysfs numbers its entries anew each time.
        let metadata = fs::metadata("/sys/module/nvidia_uvm/refcnt").ok()?;
        Some(Loading(metadata.dev(), metadata.ino()))
    }
}

impl HostFacts {
    /// The facts of this host, now. Takes milliseconds; tens of them with nvidia-uvm.
    pub fn gather() -> HostFacts {
        HostFacts::gather_below(Path::new("/"))
    }

    /// The version of the loaded driver; `None`: none is loaded, or it does not say.
    pub fn driver_version() -> Option<DriverVersion> {
        uvm_version(Path::new("/"))
    }

    /// The facts as `/proc` and `/sys` below `root` tell them.
    fn gather_below(root: &Path) -> HostFacts {
        let exists = |path: &str| root.join(path).exists();
        HostFacts {
            kernel: kernel_release(&read(root, "proc/sys/kernel/osrelease")),
            may_bpf: may_bpf(&read(root, "proc/self/status")),
            btf: exists("sys/kernel/btf/vmlinux"),
            uprobes: exists("sys/bus/event_source/devices/uprobe"),
            kprobes: exists("sys/bus/event_source/devices/kprobe"),
            confidential: read(root, "sys/kernel/security/lockdown").contains("[confidentiality]"),
            uvm: exists("sys/module/nvidia_uvm").then(|| UvmFacts {
                version: uvm_version(root),
                symbols: module_symbols(&root.join("proc/kallsyms")),
                described: if exists("sys/kernel/btf/nvidia_uvm") {
                    described()
                } else {
                    BTreeSet::new()
                },
                sizes: kernel_sizes(&root.join("sys/kernel/btf/vmlinux")),
            }),
        }
    }
}

/// The text of a file, empty where it cannot be read.
fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default()
}

fn kernel_release(text: &str) -> (u32, u32) {
    let mut numbers = text
        .split(['.', '-'])
        .map(|part| part.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The effective capabilities in the text of a process's `status`; none where it has none.
pub(crate) fn effective(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.unwrap_or_default()
}

fn may_bpf(status: &str) -> bool {
    let effective = effective(status);
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

fn uvm_version(root: &Path) -> Option<DriverVersion> {
    // The module of some distributions has no version of its own; nvidia.ko always has.
    ["nvidia_uvm", "nvidia"].iter().find_map(|module| {
        read(root, &format!("sys/module/{module}/version"))
            .parse()
            .ok()
    })
}

/// Those of [`uvm_symbols`] that the module defines. Names are readable without privilege.
fn module_symbols(kallsyms: &Path) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let Ok(file) = File::open(kallsyms) else {
        return found;
    };
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        // ffffffffc0a01000 t name\t[nvidia_uvm]
        if !line.ends_with("[nvidia_uvm]") {
            continue;
        }
        let name = line.split_ascii_whitespace().nth(2).unwrap_or_default();
        found.extend(uvm_symbols().find(|wanted| *wanted == name));
    }
    found
}

/// Those of [`uvm_symbols`] that the loaded module's type information describes.
fn described() -> BTreeSet<&'static str> {
    use libbpf_rs::libbpf_sys as sys;
    let mut found = BTreeSet::new();
    // SAFETY: both calls return null or an object that is freed below; the names are
    // terminated by zero.
    unsafe {
        let kernel = sys::btf__load_vmlinux_btf();
        let module = if kernel.is_null() {
            std::ptr::null_mut()
        } else {
            sys::btf__load_module_btf(c"nvidia_uvm".as_ptr(), kernel)
        };
        for name in uvm_symbols().filter(|_| !module.is_null()) {
            let Ok(terminated) = std::ffi::CString::new(name) else {
                continue;
            };
            if sys::btf__find_by_name_kind(module, terminated.as_ptr(), sys::BTF_KIND_FUNC) > 0 {
                found.insert(name);
            }
        }
        sys::btf__free(module);
        sys::btf__free(kernel);
    }
    found
}

fn kernel_sizes(vmlinux: &Path) -> Option<KernelSizes> {
    let btf = Btf::from_path(vmlinux).ok()?;
    let size = |name: &str| {
        let found = btf.type_by_name::<Struct<'_>>(name)?;
        u32::try_from(found.size()).ok()
    };
    Some(KernelSizes {
        rw_semaphore: size("rw_semaphore")?,
        mutex: size("mutex")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A made-up host, removed at the end of the test.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("ovs-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn where_nothing_can_be_read_nothing_works() {
        let nowhere = HostFacts::gather_below(Path::new("/nowhere/at/all"));
        assert_eq!(nowhere, HostFacts::default());
        assert!(!nowhere.may_bpf && !nowhere.uprobes && !nowhere.kprobes);
    }

    #[test]
    fn a_host_with_the_driver_is_read_whole() {
        let kallsyms = "ffffffff81000000 T _stext\n\
             ffffffffc0a01000 t uvm_perf_event_notify\t[nvidia_uvm]\n\
             ffffffffc0a02000 T uvm_tools_broadcast_replay\t[nvidia_uvm]\n\
             ffffffffc0a03000 T uvm_va_block_evict_chunks\t[other]\n\
             ffffffffc0a04000 t uvm_perf_event_notify.cold\t[nvidia_uvm]\n";
        let root = Root::new(
            "whole",
            &[
                ("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n"),
                ("proc/self/status", "Name:\tx\nCapEff:\t000001fffeffffff\n"),
                ("proc/kallsyms", kallsyms),
                ("sys/module/nvidia_uvm/refcnt", "4\n"),
                ("sys/module/nvidia/version", "580.142\n"),
                ("sys/bus/event_source/devices/kprobe/type", "8\n"),
                (
                    "sys/kernel/security/lockdown",
                    "none integrity [confidentiality]\n",
                ),
            ],
        );
        let facts = HostFacts::gather_below(&root.0);
        assert_eq!(facts.kernel, (6, 1));
        assert!(facts.may_bpf && facts.kprobes && facts.confidential);
        assert!(!facts.uprobes && !facts.btf);
        let uvm = facts.uvm.unwrap();
        assert_eq!(uvm.version, Some(DriverVersion(580, 142, 0)));
        let symbols: Vec<_> = uvm.symbols.into_iter().collect();
        assert_eq!(
            symbols,
            ["uvm_perf_event_notify", "uvm_tools_broadcast_replay"]
        );
        assert_eq!(uvm.sizes, None);
    }

    #[test]
    fn bpf_needs_both_small_capabilities_or_the_big_one() {
        let status = |set: u64| format!("CapInh:\t0\nCapEff:\t{set:016x}\n");
        assert!(may_bpf(&status(1 << CAP_SYS_ADMIN)));
        assert!(may_bpf(&status(1 << CAP_BPF | 1 << CAP_PERFMON)));
        assert!(!may_bpf(&status(1 << CAP_BPF)));
        assert!(!may_bpf(&status(1 << CAP_PERFMON)));
        assert!(!may_bpf(&status(0)));
        assert!(!may_bpf("CapEff:\tnonsense\n"));
    }

    #[test]
    fn releases_of_all_spellings_are_read() {
        assert_eq!(kernel_release("6.18.44-fc-v669\n"), (6, 18));
        assert_eq!(kernel_release("6.6-rc3"), (6, 6));
        assert_eq!(kernel_release(""), (0, 0));
    }
}
