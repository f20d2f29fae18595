//! Checks the layouts in `oversub-uvm` against a driver's own headers, by a C file that
//! compiles only if they agree.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use oversub_uvm::requests::{LAYOUTS, Layout, PREFERRED, PREFERRED_STATUS, SetPreferredLocation};

/// Fields that only some versions have.
const OPTIONAL: &[&str] = &["requestedVersion", "grantedVersion"];

/// The C file, for all requests.
pub fn assertions() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include \"uvm_linux_ioctl.h\"\n#include \"uvm_ioctl.h\"\n",
    );
    // Writing to a string cannot fail.
    for Layout {
        name,
        number,
        fields,
    } in LAYOUTS.iter().chain([&PREFERRED])
    {
        let _ = writeln!(
            text,
            "_Static_assert({name} == {number}, \"number of {name}\");"
        );
        for (field, offset) in fields.iter().filter(|(field, _)| !OPTIONAL.contains(field)) {
            let _ = writeln!(
                text,
                "_Static_assert(offsetof({name}_PARAMS, {field}) == {offset}, \"{name}.{field}\");"
            );
        }
    }
    let (name, [early, late]) = (PREFERRED.name, PREFERRED_STATUS);
    let status = format!("offsetof({name}_PARAMS, rmStatus)");
    let _ = writeln!(
        text,
        "_Static_assert({status} == {early} || {status} == {late}, \"{name}.rmStatus\");\n\
         _Static_assert(sizeof({name}_PARAMS) == {}, \"size of {name}\");",
        size_of::<SetPreferredLocation>()
    );
    text
}

/// Compiles the assertions with the headers of a driver's source tree.
///
/// # Errors
/// What does not agree, in the compiler's words.
pub fn check(source: &Path, work: &Path) -> Result<()> {
    let file = work.join("layouts.c");
    std::fs::write(&file, assertions())?;
    let output = Command::new("gcc")
        .args(["-fsyntax-only", "-DNVIDIA_UVM_USERSPACE=1", "-I"])
        .arg(source.join("nvidia-uvm"))
        .arg("-I")
        .arg(source.join("common/inc"))
        .arg(&file)
        .output()
        .context("gcc cannot be run; install it")?;
    if !output.status.success() {
        bail!(
            "requests of oversub-uvm differ from the driver's headers in {}:\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_all_versions_have_is_asserted() {
        let text = assertions();
        assert!(text.contains("offsetof(UVM_MIGRATE_PARAMS, rmStatus) == 72"));
        assert!(text.contains("UVM_SET_PREFERRED_LOCATION == 42"));
        assert!(text.contains("sizeof(UVM_SET_PREFERRED_LOCATION_PARAMS) == 40"));
        assert!(!text.contains("requestedVersion"));
    }
}
