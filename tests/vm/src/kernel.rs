//! A Debian kernel, unpacked: its image, its headers, and its vmlinux with BTF.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::combination::Kernel;
use crate::packages::Apt;

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct KernelTree {
    /// The bootable image.
    pub image: PathBuf,
    /// `SYSOUT` of a module's build: the headers of this architecture.
    pub headers: PathBuf,
    /// `SYSSRC` of a module's build: the headers of all.
    pub common: PathBuf,
    /// Its full version.
    pub release: String,
}

/// What a kernel checks of itself while it runs, by its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfChecks {
    /// The order of locks (`CONFIG_PROVE_LOCKING`).
    pub lockdep: bool,
    /// Accesses of memory (`CONFIG_KASAN`).
    pub kasan: bool,
}

impl SelfChecks {
    fn in_config(text: &str) -> Self {
        let has = |option: &str| {
            text.lines()
                .any(|line| line.strip_prefix(option) == Some("=y"))
        };
        Self {
            lockdep: has("CONFIG_PROVE_LOCKING"),
            kasan: has("CONFIG_KASAN"),
        }
    }
}

/// The release that is meant, as in `uname -r`.
fn release_of(apt: &Apt, kernel: Kernel) -> Result<String> {
    let found = match kernel {
        Kernel::K6_1 => apt.depends("linux-image-amd64")?,
        Kernel::K6_12 => apt.search(r"^linux-image-6\.12\.[0-9.]+[+]deb12-amd64$")?,
    };
    let image = found
        .iter()
        .rev()
        .find_map(|name| name.strip_prefix("linux-image-"));
    image
        .map(str::to_owned)
        .with_context(|| format!("Debian 12 has no kernel {kernel}"))
}

impl KernelTree {
    /// Fetches and unpacks a kernel, unless it is there.
    ///
    /// # Errors
    /// Of apt and the file system.
    pub fn get(cache: &Cache, apt: &Apt, kernel: Kernel) -> Result<Self> {
        let release = release_of(apt, kernel)?;
        let headers = format!("linux-headers-{release}");
        let mut packages = vec![format!("linux-image-{release}"), headers.clone()];
        let needed = apt.depends(&headers)?;
        packages.extend(needed.into_iter().filter(|name| {
            name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-")
        }));
        let root = apt.unpacked(cache, &format!("kernel-{kernel}"), &packages)?;
        let sources = root.join("usr/src");
        let named = |end: &str| -> Result<PathBuf> {
            let entries = fs::read_dir(&sources)?.flatten().map(|entry| entry.path());
            let mut fitting = entries.filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("linux-headers-") && name.ends_with(end)
            });
            fitting
                .next()
                .with_context(|| format!("no headers *{end} in {}", sources.display()))
        };
        let tree = Self {
            image: root.join(format!("boot/vmlinuz-{release}")),
            headers: named("-amd64")?,
            common: named("-common")?,
            release,
        };
        tree.relocate()?;
        Ok(tree)
    }

    /// The headers' makefile names the installed place of the common headers.
    fn relocate(&self) -> Result<()> {
        let makefile = self.headers.join("Makefile");
        let text = fs::read_to_string(&makefile)?;
        let name = self
            .common
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let installed = format!("include /usr/src/{name}/");
        if text.contains(&installed) {
            let here = format!("include {}/", self.common.display());
            fs::write(&makefile, text.replace(&installed, &here))?;
        }
        Ok(())
    }

    /// What it checks of itself.
    ///
    /// # Errors
    /// Its configuration cannot be read.
    pub fn self_checks(&self) -> Result<SelfChecks> {
        let config = self
            .image
            .with_file_name(format!("config-{}", self.release));
        let text = fs::read_to_string(&config)
            .with_context(|| format!("cannot read {}", config.display()))?;
        Ok(SelfChecks::in_config(&text))
    }

    /// Whether a DKMS build on a user's machine would make BTF of the module: only where
    /// the headers come with a vmlinux.
    pub fn has_own_vmlinux(&self) -> bool {
        self.headers.join("vmlinux").exists()
    }

    /// Writes the kernel image's ELF file with its BTF to `to`.
    ///
    /// # Errors
    /// Where the image is packed in an unknown way.
    pub fn extract_vmlinux(&self, to: &Path) -> Result<()> {
        let image = fs::read(&self.image)?;
        let payload = payload(&image).context("the kernel's image has no payload")?;
        let (program, arguments): (_, &[&str]) = match payload {
            [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", &["-dc", "--single-stream"]),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", &["-dcq"]),
            [0x1f, 0x8b, ..] => ("gzip", &["-dcq"]),
            _ => bail!("the kernel's image is packed with an unknown method"),
        };
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(fs::File::create(to)?)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{program} cannot be run; install it"))?;
        if let Some(mut input) = child.stdin.take() {
            // Behind the stream stands its length, which the program may refuse to read.
            let _ = input.write_all(payload);
        }
        child.wait()?;
        if !fs::read(to)?.starts_with(b"\x7fELF") {
            bail!("{program} found no ELF file in {}", self.image.display());
        }
        Ok(())
    }
}

/// The packed kernel within a bzImage (Documentation/arch/x86/boot.rst: `setup_sects`,
/// `payload_offset`, `payload_length`).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = image.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    image.get(start..start + word(0x24c)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_checks_is_what_its_configuration_says() {
        let checks = SelfChecks::in_config("CONFIG_KASAN=y\n# CONFIG_PROVE_LOCKING is not set\n");
        let expected = SelfChecks {
            lockdep: false,
            kasan: true,
        };
        assert_eq!(checks, expected);
        assert_eq!(
            SelfChecks::in_config("CONFIG_KASAN_SHADOW_OFFSET=y\nCONFIG_PROVE_LOCKING=m\n"),
            SelfChecks::default()
        );
    }

    #[test]
    fn the_payload_is_where_the_boot_header_says() {
        let mut image = vec![0u8; 4096];
        image[0x1f1] = 2;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&3u32.to_le_bytes());
        let start = 3 * 512 + 16;
        image[start..start + 3].copy_from_slice(b"abc");
        assert_eq!(payload(&image), Some(&b"abc"[..]));
        assert_eq!(payload(&image[..1024]), None);
    }
}
