//! Where oversub's own files are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Environment variable that names the one folder to look in.
pub const LIB_DIR: &str = "OVERSUB_LIB_DIR";

/// The folders that oversub's files are looked for in, in order.
#[derive(Debug, Clone)]
pub struct Installation {
    folders: Vec<PathBuf>,
}

impl Installation {
    /// Looks from the place of this executable, or in `OVERSUB_LIB_DIR` alone if that is set.
    ///
    /// # Errors
    /// Where the system does not tell which file this process runs.
    pub fn find() -> Result<Self> {
        if let Some(folder) = std::env::var_os(LIB_DIR).filter(|value| !value.is_empty()) {
            return Ok(Self {
                folders: vec![PathBuf::from(folder)],
            });
        }
        let executable = std::env::current_exe().context("cannot tell where oversub itself is")?;
        let beside = executable.parent().unwrap_or(Path::new("/")).to_path_buf();
        Ok(Self {
            folders: vec![
                beside.clone(),
                beside.join("../lib/oversub"),
                PathBuf::from("/usr/lib/oversub"),
            ],
        })
    }

    /// The absolute path of the file `name`.
    ///
    /// # Errors
    /// Where no folder has it: the message says which were looked in.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        for folder in &self.folders {
            if let Ok(path) = folder.join(name).canonicalize()
                && path.is_file()
            {
                return Ok(path);
            }
        }
        let places: Vec<_> = self
            .folders
            .iter()
            .map(|f| f.display().to_string())
            .collect();
        bail!(
            "{name} was not found in {}; build it with `cargo build --release --workspace`, or set {LIB_DIR} to the folder that has it",
            places.join(", ")
        )
    }

    /// The preloaded library.
    ///
    /// # Errors
    /// As [`Installation::file`]; also where the dynamic linker could not be told of it.
    pub fn shim(&self) -> Result<PathBuf> {
        let path = self.file("liboversub.so")?;
        if path
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .any(|byte| b" :\t\n".contains(byte))
        {
            bail!(
                "{} cannot be preloaded: LD_PRELOAD has no way to write a path with a space or colon; move it and set {LIB_DIR}",
                path.display()
            );
        }
        Ok(path)
    }

    /// The soft GPU.
    ///
    /// # Errors
    /// As [`Installation::file`].
    pub fn softgpu(&self) -> Result<PathBuf> {
        self.file("liboversub_softgpu.so")
    }

    /// The daemon.
    ///
    /// # Errors
    /// As [`Installation::file`].
    pub fn daemon(&self) -> Result<PathBuf> {
        self.file("oversubd")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_that_has_the_file_is_taken() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(second.path().join("oversubd"), "").unwrap();
        let here = Installation {
            folders: vec![first.path().to_path_buf(), second.path().to_path_buf()],
        };
        assert_eq!(
            here.daemon().unwrap(),
            second.path().canonicalize().unwrap().join("oversubd")
        );
        std::fs::write(first.path().join("oversubd"), "").unwrap();
        assert_eq!(
            here.daemon().unwrap(),
            first.path().canonicalize().unwrap().join("oversubd")
        );
    }

    #[test]
    fn a_missing_file_names_the_folders_and_the_way_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = Installation {
            folders: vec![folder.path().to_path_buf()],
        };
        let error = here.shim().unwrap_err().to_string();
        assert!(
            error.contains("liboversub.so") && error.contains(LIB_DIR),
            "{error}"
        );
        assert!(
            error.contains(&folder.path().display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_library_that_ld_preload_cannot_name_is_refused() {
        let folder = tempfile::Builder::new()
            .prefix("with space")
            .tempdir()
            .unwrap();
        std::fs::write(folder.path().join("liboversub.so"), "").unwrap();
        let here = Installation {
            folders: vec![folder.path().to_path_buf()],
        };
        assert!(here.shim().unwrap_err().to_string().contains("LD_PRELOAD"));
    }
}
