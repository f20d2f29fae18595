//! The environment of a program that oversub runs: which variables, with which values.
//!
//! Pure: it makes a list, and whoever starts the program applies it.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::args::Policy;
use crate::size::Size;

/// What is added to a program's environment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
}

/// What the preloaded library is told.
#[derive(Debug, Clone, Copy)]
pub struct ShimSettings<'a> {
    /// The library itself.
    pub library: &'a Path,
    /// The daemon's socket; none: the library looks at its default place.
    pub socket: Option<&'a Path>,
    /// Policy asked for.
    pub policy: Option<Policy>,
    /// Residency budget.
    pub budget: Option<Size>,
    /// Device memory told to the program, over the real one.
    pub ratio_limit: Option<f64>,
}

impl Environment {
    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Puts `first` before what the list variable `name` holds already.
    pub fn prepend(&mut self, name: &str, first: &Path, inherited: Option<&OsStr>) -> &mut Self {
        let mut value = first.as_os_str().to_owned();
        if let Some(rest) = inherited.filter(|rest| !rest.is_empty()) {
            value.push(":");
            value.push(rest);
        }
        self.set(name, value)
    }

    /// Preloads the library with its settings.
    pub fn shim(&mut self, settings: &ShimSettings<'_>) -> &mut Self {
        self.prepend(
            "LD_PRELOAD",
            settings.library,
            std::env::var_os("LD_PRELOAD").as_deref(),
        );
        if let Some(socket) = settings.socket {
            self.set("OVERSUB_SOCKET", socket);
        }
        if let Some(policy) = settings.policy {
            self.set("OVERSUB_POLICY", policy.to_string());
        }
        if let Some(budget) = settings.budget {
            self.set("OVERSUB_MEMORY_BUDGET", budget.0.to_string());
        }
        if let Some(ratio) = settings.ratio_limit {
            self.set("OVERSUB_RATIO_LIMIT", ratio.to_string());
        }
        self
    }

    /// The variables, in the order in which they were set.
    pub fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(environment: &Environment, name: &str) -> Option<String> {
        let found = environment
            .variables()
            .find(|(variable, _)| *variable == name)?;
        Some(found.1.to_string_lossy().into_owned())
    }

    #[test]
    fn what_was_preloaded_before_stays_behind_the_library() {
        let mut environment = Environment::default();
        environment.prepend(
            "LD_PRELOAD",
            Path::new("/a/liboversub.so"),
            Some(OsStr::new("/b.so")),
        );
        assert_eq!(
            value(&environment, "LD_PRELOAD").unwrap(),
            "/a/liboversub.so:/b.so"
        );
    }

    #[test]
    fn an_empty_list_gets_no_empty_entry_because_that_would_mean_the_current_folder() {
        let mut environment = Environment::default();
        environment.prepend("LD_LIBRARY_PATH", Path::new("/soft"), Some(OsStr::new("")));
        assert_eq!(value(&environment, "LD_LIBRARY_PATH").unwrap(), "/soft");
    }

    #[test]
    fn only_settings_that_were_made_are_passed_on() {
        let mut environment = Environment::default();
        environment.shim(&ShimSettings {
            library: Path::new("/liboversub.so"),
            socket: None,
            policy: Some(Policy::Deepum),
            budget: Some(Size(1 << 30)),
            ratio_limit: None,
        });
        assert_eq!(value(&environment, "OVERSUB_POLICY").unwrap(), "deepum");
        assert_eq!(
            value(&environment, "OVERSUB_MEMORY_BUDGET").unwrap(),
            "1073741824"
        );
        assert_eq!(value(&environment, "OVERSUB_SOCKET"), None);
        assert_eq!(value(&environment, "OVERSUB_RATIO_LIMIT"), None);
    }
}
