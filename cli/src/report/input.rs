//! What a report is made from: the JSON files of one folder, told apart by their shape.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::lanes::Lanes;
use crate::plan::result::PlanResult;
use crate::simulate::result::RunResult;
use crate::usage::usage;

/// Everything found, in the order of the files' names.
#[derive(Debug, Default)]
pub struct Inputs {
    /// From `oversub simulate --json`.
    pub runs: Vec<RunResult>,
    /// From `oversub plan --json`.
    pub plans: Vec<PlanResult>,
    /// From `oversub demo --json`.
    pub demos: Vec<Demo>,
    /// From `oversub simulate --timeline`.
    pub timelines: Vec<Lanes>,
}

/// The parts of a demo's result that are drawn.
#[derive(Debug, Deserialize)]
pub struct Demo {
    /// `soft`, or the device's name.
    pub device: String,
    /// Working set over memory.
    pub ratio: f64,
    /// Device memory.
    pub memory_bytes: u64,
    /// By workload.
    pub workloads: Vec<DemoWorkload>,
}

/// One workload of a demo.
#[derive(Debug, Deserialize)]
pub struct DemoWorkload {
    /// Its name.
    pub name: String,
    /// Seconds that no policy can beat.
    pub bound_s: Option<f64>,
    /// By mode.
    pub runs: Vec<DemoRun>,
}

/// One mode of a workload.
#[derive(Debug, Deserialize)]
pub struct DemoRun {
    /// Which.
    pub mode: String,
    /// Seconds of all iterations.
    pub seconds: f64,
}

impl Inputs {
    /// Reads every `*.json` in a folder.
    ///
    /// # Errors
    /// [`crate::usage::Usage`] where there is none, or one is none of the known kinds.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut inputs = Self::default();
        let files = json_files(folder)?;
        if files.is_empty() {
            return usage(format!(
                "{} has no .json file; put the output of `oversub simulate --json` there",
                folder.display()
            ));
        }
        for file in files {
            inputs.add(&file)?;
        }
        if inputs.runs.is_empty()
            && inputs.plans.is_empty()
            && inputs.demos.is_empty()
            && inputs.timelines.is_empty()
        {
            return usage(format!(
                "{}: its files hold no run, plan, demo or timeline",
                folder.display()
            ));
        }
        Ok(inputs)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(error) => return usage(format!("{}: not JSON: {error}", path.display())),
        };
        let outcome = match &value {
            Value::Array(_) => serde_json::from_value(value).map(|runs: Vec<RunResult>| {
                self.runs.extend(runs);
            }),
            Value::Object(keys) if keys.contains_key("traceEvents") => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                Lanes::read(&value, &name).map(|lanes| self.timelines.push(lanes))
            }
            Value::Object(keys) if keys.contains_key("links") => {
                serde_json::from_value(value).map(|plan| self.plans.push(plan))
            }
            Value::Object(keys) if keys.contains_key("workloads") => {
                serde_json::from_value(value).map(|demo| self.demos.push(demo))
            }
            _ => {
                return usage(format!(
                    "{}: neither runs of `simulate`, a `plan`, a `demo` nor a timeline; move it away",
                    path.display()
                ));
            }
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => usage(format!("{}: {error}", path.display())),
        }
    }
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            return usage(format!("cannot read folder {}: {error}", folder.display()));
        }
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot read folder {}", folder.display()))?
            .path();
        if path.extension().is_some_and(|ending| ending == "json") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn wrong(files: &[(&str, &str)]) -> String {
        let folder = folder(files);
        let error = Inputs::read(folder.path()).unwrap_err();
        assert!(error.is::<Usage>(), "{error:#}");
        error.to_string()
    }

    #[test]
    fn files_are_told_apart_by_their_shape() {
        let folder = folder(&[
            ("a.json", "[]"),
            (
                "demo.json",
                r#"{"device":"soft","ratio":1.5,"memory_bytes":1,"workloads":[
                    {"name":"sweep","bound_s":1.0,"runs":[{"mode":"driver","seconds":2.0}]}]}"#,
            ),
            ("t.json", r#"{"traceEvents":[]}"#),
            ("note.txt", "not looked at"),
        ]);
        let inputs = Inputs::read(folder.path()).unwrap();
        assert_eq!((inputs.demos.len(), inputs.timelines.len()), (1, 1));
        assert!(inputs.runs.is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_with_the_file() {
        assert!(wrong(&[("a.json", "{")]).contains("a.json: not JSON"));
        assert!(wrong(&[("a.json", r#"{"x":1}"#)]).contains("a.json: neither"));
        let missing = wrong(&[("a.json", r#"[{"trace":"x"}]"#)]);
        assert!(
            missing.contains("a.json") && missing.contains("policy"),
            "{missing}"
        );
    }

    #[test]
    fn an_empty_folder_and_none_at_all_are_wrong() {
        assert!(wrong(&[]).contains("no .json file"));
        let error = Inputs::read(Path::new("/does/not/exist")).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("/does/not/exist"));
    }
}
