//! Debian packages, fetched and unpacked but never installed.
//!
//! Each suite gets an apt of its own: lists, cache and sources in the cache folder, from
//! the mirrors that the host is set up with. The host's configuration stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, Inputs};

/// A Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

const COMPONENTS: &str = "main contrib non-free non-free-firmware";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Packages cannot be had here, which is no fault of what is tested.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Mirrors of Debian and, where there is one, of its security suite.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirrors {
    debian: String,
    security: Option<String>,
}

/// The first Debian mirrors named in apt's source files, deb822 or one line each. `None`:
/// there is none.
fn mirrors_in(files: &[String]) -> Option<Mirrors> {
    let mut uris = Vec::new();
    for line in files.iter().flat_map(|file| file.lines()) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("URIs:") => uris.extend(words),
            Some("deb") => uris.extend(words.find(|word| word.contains("://"))),
            _ => {}
        }
    }
    let mut uris = uris
        .into_iter()
        .map(|uri| uri.trim_end_matches('/'))
        .filter(|uri| uri.contains("debian"));
    let mut all = uris.clone();
    let debian = uris.find(|uri| !uri.contains("security"));
    let security = all.find(|uri| uri.contains("security"));
    Some(Mirrors {
        debian: debian?.to_owned(),
        security: security.map(str::to_owned),
    })
}

fn host_mirrors() -> Result<Mirrors> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten();
    paths.extend(parts.flatten().map(|entry| entry.path()));
    paths.sort();
    let files: Vec<_> = paths.iter().flat_map(fs::read_to_string).collect();
    mirrors_in(&files)
        .context("apt names no Debian mirror on this host: name one in /etc/apt/sources.list")
}

/// One suite's apt.
#[derive(Debug)]
pub struct Apt {
    root: PathBuf,
    suite: Suite,
}

impl Apt {
    /// Sets it up in the cache and fetches its lists, unless that was done.
    ///
    /// # Errors
    /// Where apt-get is missing or no mirror can be reached.
    pub fn open(cache: &Cache, suite: Suite) -> Result<Self> {
        let Mirrors { debian, security } = host_mirrors()?;
        let name = suite.name();
        let line = |mirror: &str, suite: &str| {
            format!("deb [signed-by={KEYRING}] {mirror} {suite} {COMPONENTS}\n")
        };
        let mut sources = line(&debian, name) + &line(&debian, &format!("{name}-updates"));
        if let Some(security) = security {
            sources += &line(&security, &format!("{name}-security"));
        }
        let inputs = Inputs::new(1).text(&sources);
        let root = cache.get(&format!("apt-{name}"), &inputs, |root| {
            for folder in ["lists/partial", "cache/archives/partial", "parts"] {
                fs::create_dir_all(root.join(folder))?;
            }
            fs::write(root.join("sources.list"), &sources)?;
            fs::write(root.join("status"), "")?;
            let apt = Self {
                root: root.to_owned(),
                suite,
            };
            apt.run("apt-get", &["update", "--error-on=any"], root)?;
            Ok(())
        })?;
        Ok(Self { root, suite })
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
        let option = |name: &str, path: &str| format!("{name}={}", self.root.join(path).display());
        let mut command = Command::new(program);
        for option in [
            option("Dir::Etc::SourceList", "sources.list"),
            option("Dir::Etc::SourceParts", "parts"),
            option("Dir::State::Lists", "lists"),
            option("Dir::State::status", "status"),
            option("Dir::Cache", "cache"),
            "APT::Sandbox::User=root".into(),
            "Acquire::Retries=3".into(),
            "APT::Get::List-Cleanup=0".into(),
        ] {
            command.arg("-o").arg(option);
        }
        command.args(arguments).current_dir(folder);
        let output = command
            .output()
            .with_context(|| format!("{program} cannot be run; this needs Debian's apt"))?;
        if !output.status.success() {
            return Err(Unavailable(format!(
                "{program} {} for {} failed: {}",
                arguments.join(" "),
                self.suite.name(),
                String::from_utf8_lossy(&output.stderr).trim()
            ))
            .into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What apt-cache says of the lists. They do not change once they are fetched, and apt
    /// reads all of them for every question, so each is asked once.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let known = self.root.join("answers");
        let file = known.join(Inputs::new(1).text(&arguments.join(" ")).key());
        if let Ok(text) = fs::read_to_string(&file) {
            return Ok(text);
        }
        let text = self.run("apt-cache", arguments, &self.root)?;
        fs::create_dir_all(&known)?;
        let half = file.with_extension("half");
        fs::write(&half, &text)?;
        fs::rename(&half, &file)?;
        Ok(text)
    }

    /// The packages that a package depends on, by name.
    ///
    /// # Errors
    /// Of apt.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = self.ask(&["depends", package])?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .filter(|name| !name.starts_with('<'))
            .map(str::to_owned)
            .collect())
    }

    /// Names that match a regular expression, sorted.
    ///
    /// # Errors
    /// Of apt.
    pub fn search(&self, names: &str) -> Result<Vec<String>> {
        let text = self.ask(&["search", "--names-only", names])?;
        let names = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_by_key(|name| numbers_in(name));
        Ok(names)
    }

    /// The newest version of a package.
    ///
    /// # Errors
    /// Of apt, and where there is none.
    pub fn version(&self, package: &str) -> Result<String> {
        let text = self.ask(&["show", "--no-all-versions", package])?;
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        version
            .map(str::to_owned)
            .with_context(|| format!("{} has no package {package}", self.suite.name()))
    }

    /// Fetches packages and unpacks them into one folder of the cache.
    ///
    /// # Errors
    /// Of apt, dpkg-deb and the file system.
    pub fn unpacked(&self, cache: &Cache, step: &str, packages: &[String]) -> Result<PathBuf> {
        let mut inputs = Inputs::new(1);
        for package in packages {
            inputs = inputs.text(package).text(&self.version(package)?);
        }
        cache.get(step, &inputs, |root| {
            let archives = root.join("archives");
            fs::create_dir_all(&archives)?;
            let mut arguments = vec!["download"];
            arguments.extend(packages.iter().map(String::as_str));
            self.run("apt-get", &arguments, &archives)?;
            for archive in fs::read_dir(&archives)? {
                let archive = archive?.path();
                let unpacked = Command::new("dpkg-deb")
                    .arg("-x")
                    .arg(&archive)
                    .arg(root)
                    .status()?;
                if !unpacked.success() {
                    bail!("dpkg-deb cannot unpack {}", archive.display());
                }
            }
            fs::remove_dir_all(&archives)?;
            Ok(())
        })
    }
}

/// The numbers in a name, for sorting by version.
fn numbers_in(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_those_of_the_host_in_both_forms() {
        let deb822 = "Types: deb\nURIs: http://mirror.example/debian/\nSuites: bookworm\n\n\
                      Types: deb\nURIs: http://mirror.example/debian-security\n";
        let found = mirrors_in(&[deb822.into()]).unwrap();
        assert_eq!(found.debian, "http://mirror.example/debian");
        let security = found.security.as_deref();
        assert_eq!(security, Some("http://mirror.example/debian-security"));
        let lines = "deb [arch=amd64] https://one.example/debian bookworm main\n\
                     deb https://other.example/node nodistro main\n";
        let found = mirrors_in(&[lines.into()]).unwrap();
        assert_eq!(found.debian, "https://one.example/debian");
        assert_eq!(found.security, None);
        let other = "deb https://other.example/node nodistro main\n";
        assert_eq!(mirrors_in(&[other.into()]), None);
    }

    #[test]
    fn later_versions_sort_behind_earlier_ones() {
        let mut names = [
            "linux-image-6.12.100+deb12-amd64",
            "linux-image-6.12.9+deb12-amd64",
        ];
        names.sort_by_key(|name| numbers_in(name));
        assert_eq!(names[1], "linux-image-6.12.100+deb12-amd64");
    }
}
