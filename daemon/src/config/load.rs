//! Reads a configuration and names what is wrong with it: file, line, key, what is allowed.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{Config, Violation};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{path}: cannot read the configuration: {source}; name another file with --config")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, has an unknown key or a value of the wrong type.
    #[error("{path}:{line}: {key}{message}")]
    Parse {
        /// Which file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// The key at fault with `: ` behind it; empty where no key is.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// A value breaks a rule.
    #[error("{place}: {}: {} is not allowed; allowed: {}", violation.key, violation.found, violation.allowed)]
    Value {
        /// File and line, or the command line.
        place: String,
        /// Which rule.
        violation: Violation,
    },
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`], naming file, line and key.
    pub fn from_file(path: &Path) -> Result<Config, ConfigError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Config::from_text(&name, &text),
            Err(source) => Err(ConfigError::Read { path: name, source }),
        }
    }

    /// Reads and checks `text`, which came from `path`.
    ///
    /// # Errors
    /// [`ConfigError`], naming file, line and key.
    pub fn from_text(path: &str, text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let key = key_at(text, offset)
                .map(|key| format!("{key}: "))
                .unwrap_or_default();
            let message = error.message().trim().replace('\n', "; ");
            ConfigError::Parse {
                path: path.to_owned(),
                line: line_of(text, offset),
                key,
                message,
            }
        })?;
        match config.violation() {
            None => Ok(config),
            Some(violation) => {
                let place = match offset_of(text, violation.key) {
                    Some(offset) => format!("{path}:{}", line_of(text, offset)),
                    None => path.to_owned(),
                };
                Err(ConfigError::Value { place, violation })
            }
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
}

/// Offset of a dotted key's value in `text`.
fn offset_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut table = table.get_ref();
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        let (name, value) = table
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == part)?;
        match (parts.peek(), value.get_ref()) {
            (None, _) => return Some(name.span().start),
            (Some(_), DeValue::Table(inner)) => table = inner,
            _ => return None,
        }
    }
    None
}

/// The dotted key whose name or value lies at `offset`.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    search(table.get_ref(), offset)
}

fn search(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let own = name.get_ref().as_ref();
        if name.span().contains(&offset) {
            return Some(own.to_owned());
        }
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(key) = search(inner, offset)
        {
            return Some(format!("{own}.{key}"));
        }
        value.span().contains(&offset).then(|| own.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::from_text("test.toml", text)
            .expect_err("must be refused")
            .to_string()
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Config::from_text("x", "").ok(), Some(Config::default()));
    }

    #[test]
    fn defaults_keep_their_own_rules() {
        assert_eq!(Config::default().violation(), None);
    }

    #[test]
    fn an_unknown_key_is_named_with_file_line_and_the_keys_there_are() {
        let message = error("policy = \"foresight\"\n\n[socket]\nmod = 0o660\n");
        assert!(
            message.starts_with("test.toml:4: socket.mod: "),
            "{message}"
        );
        assert!(
            message.contains("`mode`") && message.contains("`max_sessions`"),
            "{message}"
        );
    }

    #[test]
    fn an_unknown_table_is_named() {
        let message = error("[sockets]\nmode = 1\n");
        assert!(message.starts_with("test.toml:1: sockets: "), "{message}");
    }

    #[test]
    fn a_wrong_word_is_named_with_the_words_allowed() {
        let message = error("policy = \"best\"\n");
        assert!(message.starts_with("test.toml:1: policy: "), "{message}");
        assert!(
            message.contains("`foresight`") && message.contains("`driver`"),
            "{message}"
        );
    }

    #[test]
    fn a_wrong_type_is_named() {
        let message = error("[engine]\nblocks = \"many\"\n");
        assert!(
            message.starts_with("test.toml:2: engine.blocks: "),
            "{message}"
        );
    }

    #[test]
    fn a_wrong_size_is_named_with_what_is_allowed() {
        let message = error("[engine]\ninflight = \"16MB\"\n");
        assert!(
            message.starts_with("test.toml:2: engine.inflight: "),
            "{message}"
        );
        assert!(message.contains("16MiB"), "{message}");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_line_and_range() {
        let message = error("\n[session]\nevent_slots = 1000\n");
        assert_eq!(
            message,
            "test.toml:3: session.event_slots: 1000 is not allowed; allowed: a power of two, 128 to 1048576"
        );
    }

    #[test]
    fn text_that_is_no_toml_is_named_by_line() {
        let message = error("policy = \"foresight\"\nthis is not toml\n");
        assert!(message.starts_with("test.toml:2: "), "{message}");
    }

    #[test]
    fn what_is_printed_reads_back() {
        let text = toml::to_string(&Config::default()).expect("prints");
        assert_eq!(Config::from_text("x", &text).ok(), Some(Config::default()));
    }

    #[test]
    fn the_documented_file_is_the_defaults() {
        let text = include_str!("../../../deploy/oversubd.toml");
        assert_eq!(
            Config::from_text("oversubd.toml", text).ok(),
            Some(Config::default())
        );
    }

    #[test]
    fn the_documented_file_has_every_key() {
        let text = include_str!("../../../deploy/oversubd.toml");
        let mut config = Config::default();
        config.control.path = Some("/run/oversub/control.sock".into());
        config.profiles.directory = Some("/var/lib/oversub/profiles".into());
        let all = toml::to_string(&config).expect("prints");
        let mut table = String::new();
        for line in all.lines() {
            if let Some(name) = line.strip_prefix('[') {
                table = name.trim_end_matches(']').to_owned();
            } else if let Some((key, _)) = line.split_once(" = ") {
                let from = text.find(&format!("[{table}]")).unwrap_or(0);
                let there = text[from..].lines().any(|line| {
                    line.trim_start_matches("# ")
                        .starts_with(&format!("{key} = "))
                });
                assert!(
                    there,
                    "`{table}.{key}` is not documented in deploy/oversubd.toml"
                );
            }
        }
    }
}
