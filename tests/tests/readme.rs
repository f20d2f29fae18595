//! What the README says of the library and the simulator is what they say of themselves.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};

use libloading::Library;
use oversub_tests::binary;
use oversub_tests::program::{outcome, oversub};
use serde_json::Value;

/// As `oversub_entry_point` of the library returns it.
#[repr(C)]
struct EntryPoint {
    symbol: *const c_char,
    family: *const c_char,
    since: c_int,
    per_thread: c_int,
    duty: c_int,
}

/// The entry points of one duty, by the names that programs ask for.
fn covered(library: &Library, duty: c_int) -> BTreeSet<String> {
    // SAFETY: the library exports this function with this signature.
    let ask = unsafe { library.get::<extern "C" fn(usize) -> EntryPoint>(b"oversub_entry_point") };
    let ask = ask.expect("the library lists its entry points");
    (0..)
        .map(|index| ask(index))
        .take_while(|entry| !entry.symbol.is_null())
        .filter(|entry| entry.duty == duty)
        .map(|entry| {
            // SAFETY: the names are constants of the library, which stays loaded meanwhile.
            unsafe { CStr::from_ptr(entry.family) }
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn the_coverage_table_lists_exactly_the_librarys_entry_points() {
    // SAFETY: the library does nothing when it is loaded.
    let library = unsafe { Library::new(binary("liboversub.so")) }.expect("loads the library");
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).expect("reads the README");
    for (duty, name) in [(0, "transform"), (1, "observe"), (2, "fix")] {
        let covered = covered(&library, duty);
        let row = readme
            .lines()
            .find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("the README has no row for {name}"));
        let told: BTreeSet<String> = row
            .split('`')
            .filter(|word| word.starts_with("cu"))
            .map(str::to_owned)
            .collect();
        let list: Vec<_> = covered.iter().map(|name| format!("`{name}`")).collect();
        assert_eq!(told, covered, "{name} should be: {}", list.join(", "));
    }
}

#[test]
fn the_table_of_policies_lists_exactly_the_simulators_policies() {
    let told = outcome(&mut oversub(&["simulate", "--list", "--json"]));
    let list: Value = serde_json::from_str(&told.out).expect("is JSON");
    let word = |policy: &Value, key: &str| policy[key].as_str().unwrap_or_default().to_owned();
    let rows: Vec<String> = list["policies"]
        .as_array()
        .expect("has policies")
        .iter()
        .map(|policy| {
            let [name, class, about] = ["name", "class", "about"].map(|key| word(policy, key));
            format!("| `{name}` | {class} | {about} |")
        })
        .collect();
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).expect("reads the README");
    let table: Vec<&str> = readme
        .lines()
        .skip_while(|line| !line.starts_with("| policy | told |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(table, rows, "the table should be:\n{}", rows.join("\n"));
}
