//! A root file system for a guest: an uncompressed cpio archive ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst) that the kernel unpacks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that is being written.
pub struct Image {
    output: BufWriter<File>,
    folders: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
    inode: u32,
}

impl Image {
    /// Begins an archive, with the folders and the console that init needs.
    ///
    /// # Errors
    /// Of writing.
    pub fn create(path: &Path) -> Result<Self> {
        let output =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut image = Self {
            output: BufWriter::with_capacity(1 << 20, output),
            folders: BTreeSet::new(),
            files: BTreeSet::new(),
            inode: 0,
        };
        for folder in ["dev", "proc", "sys", "tmp", "run", "var/tmp"] {
            image.folder(Path::new(folder))?;
        }
        image.entry("dev/console", CHARACTER_DEVICE, (5, 1), &[])?;
        Ok(image)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        self.inode += 1;
        let header = format!(
            "070701{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            device.0,
            device.1,
            name.len() + 1,
            0
        );
        self.output.write_all(header.as_bytes())?;
        self.output.write_all(name.as_bytes())?;
        let pad = |length: usize| &[0u8; 4][..length.next_multiple_of(4) - length];
        self.output.write_all(&[0])?;
        self.output.write_all(pad(header.len() + name.len() + 1))?;
        self.output.write_all(content)?;
        self.output.write_all(pad(content.len()))?;
        Ok(())
    }

    fn folder(&mut self, folder: &Path) -> Result<()> {
        let above: Vec<_> = folder
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        for path in above.into_iter().rev() {
            if self.folders.insert(path.to_owned()) {
                self.entry(&path.to_string_lossy(), FOLDER, (0, 0), &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file at an absolute path; the first of a name stays.
    ///
    /// # Errors
    /// Of writing.
    pub fn add(&mut self, at: &str, content: &[u8]) -> Result<()> {
        let path = PathBuf::from(at.trim_start_matches('/'));
        if !self.files.insert(path.clone()) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            self.folder(folder)?;
        }
        self.entry(&path.to_string_lossy(), PROGRAM, (0, 0), content)
    }

    /// Adds a program or library of the host, without its debug information, and the
    /// libraries that it is linked with.
    ///
    /// # Errors
    /// Where it cannot be read, and where a library is missing.
    pub fn add_linked(&mut self, at: &str, from: &Path) -> Result<()> {
        let stripped =
            std::env::temp_dir().join(format!("oversub-vm-strip-{}", std::process::id()));
        let strip = Command::new("strip")
            .arg("-g")
            .arg("-o")
            .arg(&stripped)
            .arg(from)
            .status()?;
        if !strip.success() {
            bail!("strip cannot read {}", from.display());
        }
        self.add(at, &fs::read(&stripped)?)?;
        fs::remove_file(&stripped)?;
        let ldd = Command::new("ldd")
            .arg(from)
            .output()
            .context("ldd cannot be run")?;
        let text = String::from_utf8_lossy(&ldd.stdout).into_owned();
        if text.contains("not found") {
            bail!("libraries of {} are missing:\n{text}", from.display());
        }
        for library in libraries(&text) {
            self.add(library, &fs::read(library)?)?;
        }
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Of writing.
    pub fn finish(mut self) -> Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.output.flush()?;
        Ok(())
    }
}

/// The files in what ldd prints.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    let words = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    words.map(|word| word.trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_files_that_ldd_names() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(
            found,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
    }

    #[test]
    fn cpio_reads_what_was_written() {
        let path = std::env::temp_dir().join(format!("oversub-vm-image-{}", std::process::id()));
        let mut image = Image::create(&path).unwrap();
        image.add("/lib/a/b", b"content").unwrap();
        image.add("/lib/a/b", b"again").unwrap();
        image.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 12);
        assert!(text.contains("lib/a/b\0") && text.contains("content") && !text.contains("again"));
        let folder = text.find("lib/a\0").unwrap();
        assert!(
            folder < text.find("lib/a/b\0").unwrap(),
            "folders come before what is in them"
        );
        fs::remove_file(path).unwrap();
    }
}
