//! Which traces were meant: files, and all those in folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::usage::usage;

/// How a trace file's name ends.
const ENDING: &str = ".trace.jsonl.zst";

/// The files meant by `given`, in that order; those of a folder by name.
///
/// # Errors
/// [`crate::usage::Usage`] where one is not there or a folder has none.
pub fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in given {
        match fs::metadata(path) {
            Err(error) => return usage(format!("cannot open trace {}: {error}", path.display())),
            Ok(about) if about.is_dir() => files.extend(of_folder(path)?),
            Ok(_) => files.push(path.clone()),
        }
    }
    Ok(files)
}

fn of_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return usage(format!("cannot read folder {}: {error}", folder.display())),
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(ENDING) && path.is_file()
        })
        .collect();
    if files.is_empty() {
        return usage(format!("{} has no *{ENDING}", folder.display()));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    #[test]
    fn a_folder_stands_for_its_traces_by_name_and_for_nothing_else_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.trace.jsonl.zst", "a.trace.jsonl.zst", "FORMAT.md"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("c.trace.jsonl.zst")).unwrap();
        let found = files(&[folder.path().to_owned()]).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["a.trace.jsonl.zst", "b.trace.jsonl.zst"]);
    }

    #[test]
    fn a_missing_file_and_an_empty_folder_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("gone")] {
            let error = files(std::slice::from_ref(&path)).unwrap_err();
            assert!(error.is::<Usage>());
            assert!(error.to_string().contains(path.to_str().unwrap()));
        }
    }
}
