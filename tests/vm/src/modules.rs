//! Builds nvidia-uvm.ko as Debian packages its source, and the stand-in for nvidia.ko
//! beside it, in one run: so both have the same symbol versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, Inputs};
use crate::combination::{Build, Driver, Flavour, Kernel};
use crate::kernel::KernelTree;
use crate::packages::{Apt, Suite};
use crate::{interface, layouts};

/// Raise it when this file makes something else of the same inputs.
const STEP: u32 = 1;
/// Folder of the stand-in within the driver's tree.
const STAND_IN: &str = "nvidia-softgpu";
/// What is taken of the driver's tree.
const TAKEN: &[&str] = &[
    "Kbuild",
    "Makefile",
    "common",
    "conftest.sh",
    "count-lines.mk",
    "header-presence-tests.mk",
    "nvidia-uvm",
];

/// The modules of one build.
#[derive(Clone, Debug)]
pub struct Modules {
    /// Folder with `nvidia.ko` and `nvidia-uvm.ko`, without debug information, with BTF.
    pub folder: PathBuf,
    /// Version of the driver.
    pub version: String,
}

impl Modules {
    /// A module's file, with its BTF or without.
    ///
    /// # Errors
    /// Where it cannot be read, and where BTF is wanted and there is none.
    pub fn content(&self, module: &str, btf: bool) -> Result<Vec<u8>> {
        let with = self.folder.join(module);
        if btf {
            return fs::read(&with).with_context(|| format!("cannot read {}", with.display()));
        }
        let without = self.folder.join(format!("{module}.without-btf"));
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["--remove-section=.BTF", "--remove-section=.BTF.base"]);
        if !objcopy.arg(&with).arg(&without).status()?.success() {
            bail!("objcopy cannot read {}", with.display());
        }
        Ok(fs::read(&without)?)
    }
}

fn package(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Open => "nvidia-open-kernel-source",
        Flavour::Closed => "nvidia-kernel-source",
    }
}

/// The unpacked source of a driver.
fn source(cache: &Cache, apt: &Apt, driver: Driver, flavour: Flavour) -> Result<PathBuf> {
    let package = package(flavour);
    let step = format!("package-{driver}-{flavour}");
    let root = apt.unpacked(cache, &step, &[package.to_owned()])?;
    let key = root
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let tree = cache.get(
        &format!("source-{driver}-{flavour}"),
        &Inputs::new(STEP).text(&key),
        |folder| {
            let archives = fs::read_dir(root.join("usr/src"))?.flatten();
            let archive = archives
                .map(|entry| entry.path())
                .find(|path| path.to_string_lossy().ends_with(".tar.xz"))
                .with_context(|| format!("{package} has no source archive"))?;
            let mut tar = Command::new("tar");
            tar.arg("-xf").arg(archive).arg("-C").arg(folder);
            if !tar.status()?.success() {
                bail!("tar cannot unpack the source in {package}");
            }
            Ok(())
        },
    )?;
    let modules = fs::read_dir(tree.join("modules"))?
        .flatten()
        .map(|entry| entry.path());
    let mut fitting = modules.filter(|path| path.join("nvidia-uvm").is_dir());
    fitting
        .next()
        .with_context(|| format!("{package} has no nvidia-uvm"))
}

/// Builds the modules, unless they are there.
///
/// # Errors
/// Where the source does not build; the log is named.
pub fn get(
    cache: &Cache,
    bookworm: &Apt,
    kernel: &KernelTree,
    build: Build,
    device: &Path,
) -> Result<Modules> {
    let trixie;
    let apt = match build.driver {
        Driver::D535 => bookworm,
        Driver::D550 => {
            trixie = Apt::open(cache, Suite::Trixie)?;
            &trixie
        }
    };
    let source = source(cache, apt, build.driver, build.flavour)?;
    let version = apt.version(package(build.flavour))?;
    let version = version.split('-').next().unwrap_or_default().to_owned();
    let inputs = Inputs::new(STEP)
        .text(&source.to_string_lossy())
        .text(&kernel.headers.to_string_lossy())
        .text(&layouts::assertions())
        .folder(device)?;
    let folder = cache.get(&format!("modules-{build}"), &inputs, |result| {
        // Kept from one build to the next: only what changed is compiled again.
        let tree = cache.root().join(format!("tree-{build}"));
        prepare(&tree, &source, device, build.flavour)?;
        layouts::check(&tree, result)?;
        compile(&tree, kernel, build, result)?;
        for module in ["nvidia.ko", "nvidia-uvm.ko"] {
            let mut strip = Command::new("strip");
            strip
                .arg("-g")
                .arg("-o")
                .arg(result.join(module))
                .arg(tree.join(module));
            if !strip.status()?.success() {
                bail!("strip cannot read {module}");
            }
        }
        Ok(())
    })?;
    Ok(Modules { folder, version })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    if !copied.success() {
        bail!("cannot copy {} to {}", from.display(), to.display());
    }
    Ok(())
}

/// Writes a file only where its content changes, so that make leaves the rest alone.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Lays the stand-in beside the driver's own source.
fn prepare(tree: &Path, source: &Path, device: &Path, flavour: Flavour) -> Result<()> {
    let marker = tree.join(".source");
    let name = source.to_string_lossy();
    if fs::read(&marker).ok().as_deref() != Some(name.as_bytes()) {
        if tree.exists() {
            fs::remove_dir_all(tree)?;
        }
        fs::create_dir_all(tree)?;
        for part in TAKEN.iter().filter(|part| source.join(part).exists()) {
            copy(&source.join(part), tree)?;
        }
        fs::write(&marker, name.as_bytes())?;
    }
    let folder = tree.join(STAND_IN);
    fs::create_dir_all(&folder)?;
    for file in fs::read_dir(device)? {
        let file = file?.path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            write(&folder.join(name), &fs::read(&file)?)?;
        }
    }
    let include = tree.join("common/inc");
    let prototypes =
        interface::prototypes(&fs::read_to_string(include.join("nv_uvm_interface.h"))?);
    if prototypes.is_empty() {
        bail!("no prototypes in {}/nv_uvm_interface.h", include.display());
    }
    let types = fs::read_to_string(include.join("nv_uvm_types.h"))?;
    write(
        &folder.join("rm_defaults.c"),
        interface::defaults(&prototypes).as_bytes(),
    )?;
    let header = interface::version_header(&prototypes, &types, flavour);
    write(&folder.join("rm_version.h"), header.as_bytes())?;
    // The stand-in includes what nvidia.ko's own files do, so it needs their tests.
    let tests = fs::read_to_string(source.join("nvidia/nvidia.Kbuild"))?;
    let tests = tests
        .lines()
        .filter(|line| line.starts_with("NV_CONFTEST_") && line.contains("_COMPILE_TESTS"));
    let mut kbuild = fs::read_to_string(device.join("Kbuild.in"))?;
    kbuild.extend(tests.map(|line| format!("{line}\n")));
    write(
        &folder.join(format!("{STAND_IN}.Kbuild")),
        kbuild.as_bytes(),
    )
}

fn compile(tree: &Path, kernel: &KernelTree, build: Build, result: &Path) -> Result<()> {
    let mut make = Command::new("make");
    if !kernel.has_own_vmlinux() || build.kernel == Kernel::K6_1 {
        // Debian's 6.1 headers lack what BTF of modules is made against.
        let vmlinux = kernel.headers.join("vmlinux");
        if !vmlinux.exists() {
            kernel.extract_vmlinux(&vmlinux)?;
        }
        make.arg("RESOLVE_BTFIDS=true");
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let log = result.join("build.log");
    let output = File::create(&log)?;
    make.arg("-C").arg(tree).arg(format!("-j{jobs}"));
    make.arg(format!("SYSSRC={}", kernel.common.display()));
    make.arg(format!("SYSOUT={}", kernel.headers.display()));
    make.arg(format!("NV_KERNEL_MODULES={STAND_IN} nvidia-uvm"));
    make.args([
        "CC=gcc-12",
        "IGNORE_CC_MISMATCH=1",
        "IGNORE_PREEMPT_RT_PRESENCE=1",
        "modules",
    ]);
    make.stdout(output.try_clone()?).stderr(output);
    let status = make.status().context("make cannot be run; install it")?;
    if !status.success() {
        let kept = tree.join("build.log");
        let _ = fs::copy(&log, &kept);
        let text = fs::read_to_string(&kept).unwrap_or_default();
        let errors = text.lines().filter(|line| line.contains("error:")).take(10);
        bail!(
            "nvidia-uvm {build} does not build; see {}\n{}",
            kept.display(),
            errors.collect::<Vec<_>>().join("\n")
        );
    }
    Ok(())
}
