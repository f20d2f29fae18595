//! What can be combined: driver, flavour, kernel, BTF, model of the GPU.

use std::fmt;

/// A driver that Debian packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// 535, from Debian 12.
    D535,
    /// 550, from Debian 13.
    D550,
}

/// Which of the two sources of nvidia-uvm: they differ in what the kernel lets them use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// nvidia-open-kernel-source.
    Open,
    /// nvidia-kernel-source.
    Closed,
}

/// A kernel of Debian 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// 6.1, its default.
    K6_1,
    /// 6.12, from its security suite.
    K6_12,
}

/// The GPU that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// GP100.
    Pascal,
    /// TU102.
    Turing,
}

impl Model {
    /// The module parameter's value.
    pub fn parameter(self) -> &'static str {
        match self {
            Self::Pascal => "pascal",
            Self::Turing => "turing",
        }
    }
}

/// One build of the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Build {
    /// Driver.
    pub driver: Driver,
    /// Its flavour.
    pub flavour: Flavour,
    /// Kernel.
    pub kernel: Kernel,
}

/// One guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combination {
    /// Modules and kernel.
    pub build: Build,
    /// nvidia-uvm comes with BTF of its own (a DKMS build on 6.1 has none).
    pub btf: bool,
}

impl Combination {
    /// What runs where nothing else is asked for.
    pub const DEFAULT: Self = Self {
        build: Build {
            driver: Driver::D535,
            flavour: Flavour::Open,
            kernel: Kernel::K6_1,
        },
        btf: false,
    };

    /// Everything that Debian's packages allow.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for driver in [Driver::D535, Driver::D550] {
            for flavour in [Flavour::Open, Flavour::Closed] {
                for kernel in [Kernel::K6_1, Kernel::K6_12] {
                    for btf in [false, true] {
                        let build = Build {
                            driver,
                            flavour,
                            kernel,
                        };
                        all.push(Self { build, btf });
                    }
                }
            }
        }
        all
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::D535 => "535",
            Self::D550 => "550",
        })
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Closed => "closed",
        })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::K6_1 => "6.1",
            Self::K6_12 => "6.12",
        })
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.driver, self.flavour, self.kernel)
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let btf = if self.btf { "btf" } else { "nobtf" };
        write!(f, "{}-{btf}", self.build)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_of_all_and_all_have_names_of_their_own() {
        let all = Combination::all();
        assert!(all.contains(&Combination::DEFAULT));
        let mut names: Vec<_> = all.iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
