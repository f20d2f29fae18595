//! Where profiles lie: what a program taught, for its next run.
//!
//! Owns paths, sizes and the number of files; what is in a profile is the engine's. A file
//! that cannot be used is refused with its reason, and the session begins cold.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oversub_engine::{self as engine, Profile, ProfileError};

use crate::config::ProfilesConfig;

/// A session that launched less taught nothing that is worth keeping.
pub const LEAST_LAUNCHES: u64 = 32;
const SUFFIX: &str = "profile";

/// Why a profile was not used or not kept.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// More than `profiles.max_bytes`.
    #[error("{path}: more than the {most} bytes that `profiles.max_bytes` allows")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        most: u64,
    },
    /// It is no profile that can be used.
    #[error("{path}: {error}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ProfileError,
    },
}

/// The file of a program; none where profiles are off. A program is known by its user, its
/// executable and its arguments.
pub fn path_of(config: &ProfilesConfig, uid: u32, pid: u32) -> Option<PathBuf> {
    if let Some(file) = &config.file {
        return Some(file.clone());
    }
    let directory = config.directory.as_ref()?;
    let executable = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(directory.join(name(uid, &executable, &arguments)))
}

fn name(uid: u32, executable: &Path, arguments: &[u8]) -> String {
    let path = executable.as_os_str().as_encoded_bytes();
    let hash =
        path.iter()
            .chain(&[0])
            .chain(arguments)
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
                // FNV-1a: the same in every version.
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
            });
    let program = executable.file_name().unwrap_or_default().to_string_lossy();
    let program: String = program
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(32)
        .collect();
    format!("{uid}-{program}-{hash:016x}.{SUFFIX}")
}

/// Reads a profile; none where there is no file yet.
///
/// # Errors
/// [`Refused`] says why it cannot be used.
pub fn read(
    path: &Path,
    config: &ProfilesConfig,
    engine: &engine::Config,
) -> Result<Option<Profile>, Refused> {
    let refused = |error| Refused::File {
        path: path.to_owned(),
        error,
    };
    let most = config.max_bytes.0;
    // Never waits for a pipe's other end, never follows a link that another user laid.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error)),
    };
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(refused)?;
    if bytes.len() as u64 > most {
        return Err(Refused::TooLarge {
            path: path.to_owned(),
            most,
        });
    }
    match Profile::decode(&bytes, engine) {
        Ok(profile) => Ok(Some(profile)),
        Err(error) => Err(Refused::Content {
            path: path.to_owned(),
            error,
        }),
    }
}

/// Writes a profile; whoever reads meanwhile gets the old one or the new one, whole. Gives
/// up the files that were not written for longest where there would be too many.
///
/// # Errors
/// [`Refused`] says why it was not kept; the old one stays.
pub fn write(path: &Path, config: &ProfilesConfig, profile: &Profile) -> Result<(), Refused> {
    let bytes = profile.encode();
    let most = config.max_bytes.0;
    if bytes.len() as u64 > most {
        return Err(Refused::TooLarge {
            path: path.to_owned(),
            most,
        });
    }
    replace(path, &bytes)
        .and_then(|()| match &config.directory {
            Some(directory) if config.file.is_none() => thin_out(directory, config.max_files),
            _ => Ok(()),
        })
        .map_err(|error| Refused::File {
            path: path.to_owned(),
            error,
        })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if !folder.as_os_str().is_empty() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension(format!("{SUFFIX}.{}", std::process::id()));
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .custom_flags(libc::O_NOFOLLOW)
        .open(&new)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // What is left of it is of no use to anybody.
        let _ = fs::remove_file(&new);
    }
    written
}

fn thin_out(directory: &Path, most: u32) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path
            .extension()
            .is_some_and(|extension| extension == SUFFIX)
        {
            files.push((entry.metadata()?.modified()?, path));
        }
    }
    files.sort();
    let excess = files.len().saturating_sub(most as usize);
    for (_, path) in &files[..excess] {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use oversub_engine::{Bytes, Engine, PolicyKind};

    fn engine_config() -> engine::Config {
        engine::Config::new(PolicyKind::Foresight, Bytes(1 << 30))
    }

    fn profile() -> Profile {
        Engine::new(engine_config()).unwrap().profile()
    }

    fn kept_in(directory: &Path) -> ProfilesConfig {
        ProfilesConfig {
            directory: Some(directory.to_owned()),
            ..ProfilesConfig::default()
        }
    }

    #[test]
    fn what_is_written_is_read_and_a_missing_file_is_a_cold_start() {
        let folder = tempfile::tempdir().unwrap();
        let config = kept_in(&folder.path().join("new"));
        let path = folder.path().join("new/x.profile");
        assert!(matches!(read(&path, &config, &engine_config()), Ok(None)));
        write(&path, &config, &profile()).unwrap();
        let found = read(&path, &config, &engine_config()).unwrap();
        assert_eq!(found, Some(profile()));
    }

    #[test]
    fn a_damaged_a_large_and_a_linked_file_are_refused_with_their_reasons() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = kept_in(folder.path());
        let path = folder.path().join("x.profile");
        write(&path, &config, &profile()).unwrap();
        let reason = |config: &ProfilesConfig, path: &Path| {
            let refused = read(path, config, &engine_config());
            refused.unwrap_err().to_string()
        };
        let link = folder.path().join("link.profile");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(reason(&config, &link).contains("link.profile"));
        fs::write(&path, b"ovsprofl and then nothing of use").unwrap();
        assert!(reason(&config, &path).contains("version"));
        config.max_bytes = Size(8);
        assert!(reason(&config, &path).contains("max_bytes"));
        let refused = write(&path, &config, &profile()).unwrap_err();
        assert!(refused.to_string().contains("max_bytes"), "{refused}");
    }

    #[test]
    fn the_oldest_files_go_where_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let config = ProfilesConfig {
            max_files: 2,
            ..kept_in(folder.path())
        };
        for (age, name) in [(3, "a"), (2, "b"), (1, "c")] {
            let path = folder.path().join(name).with_extension(SUFFIX);
            write(&path, &config, &profile()).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(age * 60);
            File::open(&path).unwrap().set_modified(then).unwrap();
        }
        let newest = folder.path().join("d.profile");
        write(&newest, &config, &profile()).unwrap();
        let left = |name: &str| folder.path().join(name).exists();
        assert_eq!(
            ["a.profile", "b.profile", "c.profile", "d.profile"].map(left),
            [false, false, true, true]
        );
    }

    #[test]
    fn a_program_is_known_by_user_executable_and_arguments() {
        let python = Path::new("/usr/bin/python3.12");
        let first = name(1000, python, b"python\0train.py\0");
        assert!(first.starts_with("1000-python3_12-"), "{first}");
        assert_eq!(first, name(1000, python, b"python\0train.py\0"));
        assert_ne!(first, name(1001, python, b"python\0train.py\0"));
        assert_ne!(first, name(1000, python, b"python\0infer.py\0"));
        assert_ne!(
            first,
            name(1000, Path::new("/bin/python3.12"), b"python\0train.py\0")
        );
    }
}
