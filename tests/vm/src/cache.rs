//! Results of long steps, kept in folders that are named by what they were made from.
//!
//! A folder appears under its name only when it is complete, so a step that is interrupted
//! is done again. Whoever changes an input gets a new folder; the old ones of the step go.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What a result is made from, as one number.
#[derive(Clone, Debug)]
pub struct Inputs(std::hash::DefaultHasher);

impl Inputs {
    /// Of a step whose code is of this version: raise it when the code changes what it
    /// makes of the same inputs.
    pub fn new(step_version: u32) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u32(step_version);
        Self(hasher)
    }

    /// Adds a text.
    pub fn text(mut self, text: &str) -> Self {
        self.0.write(text.as_bytes());
        self.0.write_u8(0xff);
        self
    }

    /// Adds the files of a folder, with their names.
    ///
    /// # Errors
    /// Of reading.
    pub fn folder(mut self, folder: &Path) -> Result<Self> {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        files.sort();
        for file in files.iter().filter(|file| file.is_file()) {
            let content =
                fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            self = self.text(&file.to_string_lossy());
            self.0.write(&content);
        }
        Ok(self)
    }

    /// The number, as a name.
    pub fn key(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

impl Cache {
    /// In this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a step's result, made by `make` unless it is there.
    ///
    /// # Errors
    /// Of `make`, and of the file system.
    pub fn get(
        &self,
        step: &str,
        inputs: &Inputs,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let ready = self.root.join(format!("{step}.{}", inputs.key()));
        if ready.is_dir() {
            return Ok(ready);
        }
        let work = self.root.join(format!("{step}.making"));
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
        make(&work)?;
        self.forget(step)?;
        fs::rename(&work, &ready)?;
        Ok(ready)
    }

    /// Removes older results of a step.
    fn forget(&self, step: &str) -> Result<()> {
        let prefix = format!("{step}.");
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let key = name.strip_prefix(&prefix);
            if key.is_some_and(|key| key.len() == 16 && !key.contains('.')) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("oversub-vm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    #[test]
    fn a_step_is_done_once_for_the_same_inputs_and_again_for_others() {
        let root = scratch("once");
        let cache = Cache::new(&root);
        let mut times = 0;
        for text in ["a", "a", "b", "b"] {
            let made = cache.get("step", &Inputs::new(1).text(text), |folder| {
                times += 1;
                Ok(fs::write(folder.join("result"), text)?)
            });
            let content = fs::read_to_string(made.unwrap().join("result")).unwrap();
            assert_eq!(content, text);
        }
        assert_eq!(times, 2);
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            1,
            "the older result is gone"
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_step_that_failed_leaves_no_result() {
        let root = scratch("failed");
        let cache = Cache::new(&root);
        let inputs = Inputs::new(1);
        let failed = cache.get("step", &inputs, |_| anyhow::bail!("no"));
        assert!(failed.is_err());
        let made = cache.get("step", &inputs, |_| Ok(()));
        assert!(made.is_ok_and(|folder| folder.is_dir()));
        fs::remove_dir_all(root).unwrap();
    }
}
