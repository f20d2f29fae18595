//! The interface between RM and UVM of one driver, read from its header: what the stand-in
//! must export, and in which form.
//!
//! Every prototype becomes a weak function that answers "not supported"; `device/rm_*.c`
//! has the bodies of those that matter. Where versions differ, macros say how.

use std::fmt::Write as _;

use crate::combination::Flavour;

/// A function that nvidia-uvm imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Type of what it returns.
    pub returns: String,
    /// Its name.
    pub name: String,
    /// Its parameters, as the header has them, in one line.
    pub parameters: String,
}

/// Takes comments out of C text.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        clean.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("/*") {
            "*/"
        } else {
            "\n"
        };
        let skipped = rest[at..]
            .find(end)
            .map(|n| at + n + (end.len() - usize::from(end == "\n")));
        clean.push(' ');
        rest = skipped.map_or("", |n| &rest[n..]);
    }
    clean.push_str(rest);
    clean
}

/// All prototypes of `nvUvm...` functions in a header.
pub fn prototypes(header: &str) -> Vec<Prototype> {
    let clean = without_comments(header);
    let mut found = Vec::new();
    for declaration in clean.split(';') {
        // Preprocessor lines before a declaration are not its own.
        let lines = declaration
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let text = lines.collect::<Vec<_>>().join(" ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((head, tail)) = text.split_once('(') else {
            continue;
        };
        let Some(parameters) = tail.strip_suffix(')') else {
            continue;
        };
        let Some((returns, name)) = head.trim().rsplit_once(' ') else {
            continue;
        };
        let plain = returns
            .split(' ')
            .all(|word| word.chars().all(|c| c.is_alphanumeric() || c == '_'));
        if name.starts_with("nvUvm") && plain && !returns.contains("typedef") {
            found.push(Prototype {
                returns: returns.to_owned(),
                name: name.to_owned(),
                parameters: parameters.trim().to_owned(),
            });
        }
    }
    found
}

/// `rm_defaults.c`: every entry point, exported, with an answer that means "no".
pub fn defaults(prototypes: &[Prototype]) -> String {
    let mut text = String::from(
        "#include \"uvm_linux.h\"\n#include \"nv_uvm_interface.h\"\n#include <linux/module.h>\n",
    );
    for Prototype {
        returns,
        name,
        parameters,
    } in prototypes
    {
        let body = match returns.as_str() {
            "void" => "",
            "NV_STATUS" => "return NV_ERR_NOT_SUPPORTED;",
            _ => "return 0;",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n__weak {returns} {name}({parameters})\n{{\n\tpr_info_once(\"softgpu: {name} is not \
             modelled\\n\");\n\t{body}\n}}\nEXPORT_SYMBOL({name});\n"
        );
    }
    text
}

/// `rm_version.h`: where this version's interface differs from others', and how nvidia.ko of
/// this flavour names itself in `/proc/driver/nvidia/version`.
pub fn version_header(prototypes: &[Prototype], types_header: &str, flavour: Flavour) -> String {
    let parameters = |name: &str| {
        let found = prototypes.iter().find(|p| p.name == name);
        found.map(|p| p.parameters.as_str())
    };
    let mut text =
        String::from("/* Made from the driver's nv_uvm_interface.h and nv_uvm_types.h. */\n");
    let mut define = |name: &str, value: &str| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    let name = match flavour {
        Flavour::Open => "\"Open Kernel Module for x86_64\"",
        Flavour::Closed => "\"x86_64 Kernel Module\"",
    };
    define("RM_FLAVOUR_NAME", name);
    let creates = parameters("nvUvmInterfaceAddressSpaceCreate").unwrap_or_default();
    let ats = creates.contains("enableAts");
    define("RM_ATS_ARGUMENT", if ats { "NvBool ats," } else { "" });
    let directory = parameters("nvUvmInterfaceSetPageDirectory").unwrap_or_default();
    let more = directory.split(',').count() > 5;
    define(
        "RM_DIRECTORY_ARGUMENT",
        if more { ", NvU64 *dma_address" } else { "" },
    );
    for (function, name) in [
        (
            "nvUvmInterfaceFlushReplayableFaultBuffer",
            "RM_FLUSH_PARAMETERS",
        ),
        (
            "nvUvmInterfaceEnableAccessCntr",
            "RM_ENABLE_ACCESS_PARAMETERS",
        ),
    ] {
        define(name, parameters(function).unwrap_or("void"));
    }
    for (function, name) in [
        ("nvUvmInterfaceGetNvlinkInfo", "RM_HAS_NVLINK_INFO"),
        (
            "nvUvmInterfaceTogglePrefetchFaults",
            "RM_HAS_TOGGLE_PREFETCH_FAULTS",
        ),
    ] {
        if parameters(function).is_some() {
            define(name, "1");
        }
    }
    if types_header.contains("bUvmOwnsHwFaultBuffer") {
        define("RM_HAS_FAULT_BUFFER_OWNER", "1");
    }
    if !types_header.contains("UVM_SW_OBJ_SUBCHANNEL") {
        define("UVM_SW_OBJ_SUBCHANNEL", "5");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/* NV_STATUS nvUvmNot(void); */
#ifdef X // nvUvmNeither(void);
NV_STATUS nvUvmInterfaceFlushReplayableFaultBuffer(UvmGpuFaultInfo *pFaultInfo,
                                                   NvBool bCopyAndFlush);
#endif
void nvUvmInterfaceUnregisterGpu(const NvProcessorUuid *gpuUuid);
typedef struct { NvU32 a; } x;
";

    #[test]
    fn prototypes_are_read_with_their_parameters_and_without_comments() {
        let found = prototypes(HEADER);
        let names: Vec<_> = found.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "nvUvmInterfaceFlushReplayableFaultBuffer",
                "nvUvmInterfaceUnregisterGpu"
            ]
        );
        assert_eq!(
            found[0].parameters,
            "UvmGpuFaultInfo *pFaultInfo, NvBool bCopyAndFlush"
        );
        assert_eq!(found[1].returns, "void");
    }

    #[test]
    fn a_function_gets_a_default_that_is_exported() {
        let text = defaults(&prototypes(HEADER));
        assert!(
            text.contains(
                "__weak void nvUvmInterfaceUnregisterGpu(const NvProcessorUuid *gpuUuid)"
            )
        );
        assert!(text.contains("EXPORT_SYMBOL(nvUvmInterfaceUnregisterGpu);"));
        assert_eq!(text.matches("return NV_ERR_NOT_SUPPORTED;").count(), 1);
    }

    #[test]
    fn differences_between_versions_become_macros() {
        let text = version_header(
            &prototypes(HEADER),
            "NvBool bUvmOwnsHwFaultBuffer;",
            Flavour::Open,
        );
        assert!(
            text.contains("RM_FLUSH_PARAMETERS UvmGpuFaultInfo *pFaultInfo, NvBool bCopyAndFlush")
        );
        assert!(text.contains("RM_HAS_FAULT_BUFFER_OWNER"));
        assert!(!text.contains("RM_HAS_NVLINK_INFO"));
        assert!(text.contains("RM_FLAVOUR_NAME \"Open Kernel Module"));
    }
}
