//! Reads the entries and their parameters out of PTX text.
//!
//! The form is that of the PTX ISA, sections 5.1.6 (parameter state space) and 11.1
//! (`.entry`). Only declarations are read; a body is skipped, for the kernels themselves
//! are in `kernels`. Pure: text in, entries out.

/// One parameter of an entry, as it lies in the parameter buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// From the begin of the buffer, bytes.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// One `.entry`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
}

/// Why text is not usable as PTX.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// It has no `.version` directive, with which all PTX begins.
    #[error("the text has no .version directive, so it is not PTX")]
    NotPtx,
    /// An `.entry` that cannot be read.
    #[error("the declaration of entry \"{entry}\" cannot be read at \"{near}\"")]
    Malformed {
        /// The entry's name, as far as it was read.
        entry: String,
        /// The text at fault.
        near: String,
    },
}

/// All entries of a module.
///
/// # Errors
/// [`PtxError`], when the text is not PTX or a declaration is malformed.
pub fn entries(ptx: &str) -> Result<Vec<Entry>, PtxError> {
    let ptx = without_comments(ptx);
    if !ptx.contains(".version") {
        return Err(PtxError::NotPtx);
    }
    let mut found = Vec::new();
    let mut rest = ptx.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        if !rest.starts_with(char::is_whitespace) {
            continue;
        }
        let after = rest.trim_start();
        let end = after.find(|c: char| !is_name(c)).unwrap_or(after.len());
        let (name, tail) = after.split_at(end);
        let entry = |near: &str| PtxError::Malformed {
            entry: name.to_owned(),
            near: near.chars().take(40).collect(),
        };
        if name.is_empty() {
            return Err(entry(after));
        }
        let tail = tail.trim_start();
        let parameters = match tail.strip_prefix('(') {
            Some(list) => {
                let close = list.find(')').ok_or_else(|| entry(list))?;
                rest = &list[close..];
                parameters(&list[..close]).map_err(|near| entry(&near))?
            }
            None => {
                rest = tail;
                Vec::new()
            }
        };
        found.push(Entry {
            name: name.to_owned(),
            parameters,
        });
    }
    Ok(found)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// The declarations between the parentheses; the error is the one that cannot be read.
fn parameters(list: &str) -> Result<Vec<Parameter>, String> {
    let mut offset = 0usize;
    let mut out = Vec::new();
    if list.trim().is_empty() {
        return Ok(out);
    }
    for declaration in list.split(',') {
        let (size, align) = parameter(declaration).ok_or_else(|| declaration.trim().to_owned())?;
        offset = offset
            .checked_next_multiple_of(align)
            .ok_or_else(|| declaration.to_owned())?;
        out.push(Parameter { offset, size });
        offset = offset
            .checked_add(size)
            .ok_or_else(|| declaration.to_owned())?;
    }
    Ok(out)
}

/// Size and alignment of `.param [.align N] .TYPE [.ptr [.SPACE] [.align N]] NAME[[COUNT]]`.
fn parameter(declaration: &str) -> Option<(usize, usize)> {
    let spaced = declaration.replace('[', " [").replace(']', " ] ");
    let mut words = spaced.split_whitespace();
    if words.next()? != ".param" {
        return None;
    }
    let (mut align, mut element, mut pointee) = (None, None, false);
    let mut count = 1usize;
    let mut named = false;
    while let Some(word) = words.next() {
        if word == ".align" {
            let value: usize = words.next()?.parse().ok()?;
            // Behind `.ptr` it is the alignment of what the pointer points to.
            if !pointee {
                align = Some(value).filter(|a| a.is_power_of_two());
                align?;
            }
        } else if word == ".ptr" {
            pointee = true;
        } else if let Some(text) = word.strip_prefix('[') {
            let digits = if text.is_empty() { words.next()? } else { text };
            count = count.checked_mul(digits.parse().ok()?)?;
        } else if word == "]" {
        } else if let Some(kind) = word.strip_prefix('.') {
            match kind {
                "global" | "const" | "shared" | "local" if pointee => {}
                _ => element = Some(element_bytes(kind)?),
            }
        } else {
            named = true;
        }
    }
    let element = element.filter(|_| named)?;
    Some((element.checked_mul(count)?, align.unwrap_or(element)))
}

/// Bytes of a fundamental type (PTX ISA, table 9).
fn element_bytes(kind: &str) -> Option<usize> {
    Some(match kind {
        "u8" | "s8" | "b8" => 1,
        "u16" | "s16" | "b16" | "f16" | "bf16" => 2,
        "u32" | "s32" | "b32" | "f32" | "f16x2" => 4,
        "u64" | "s64" | "b64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

/// The text with each comment replaced by a space.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let line = rest.find("//");
        let block = rest.find("/*");
        let (at, end) = match (line, block) {
            (None, None) => break,
            (Some(l), b) if b.is_none_or(|b| l < b) => (l, "\n"),
            (_, Some(b)) => (b, "*/"),
            (Some(l), None) => (l, "\n"),
        };
        out.push_str(&rest[..at]);
        out.push(' ');
        let tail = &rest[at + 2..];
        rest = match tail.find(end) {
            // The line feed stays, for it separates words too.
            Some(stop) if end == "\n" => &tail[stop..],
            Some(stop) => &tail[stop + end.len()..],
            None => "",
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(list: &str) -> Vec<(usize, usize)> {
        let ptx = format!(".version 7.0\n.visible .entry k({list})\n{{ ret; }}");
        let entries = entries(&ptx).expect("readable");
        entries[0]
            .parameters
            .iter()
            .map(|p| (p.offset, p.size))
            .collect()
    }

    #[test]
    fn names_and_layouts_of_all_entries_are_read() {
        let ptx = "
            .version 7.0
            .target sm_80
            .address_size 64
            .visible .entry first(
                .param .u64 first_param_0,
                .param .u32 first_param_1
            )
            .maxntid 256, 1, 1
            { ld.param.u64 %rd1, [first_param_0]; ret; }
            .func helper(.param .b32 x) { ret; }
            .weak .entry second() { ret; }
            .entry third { ret; }";
        let found = entries(ptx).expect("readable");
        let names: Vec<_> = found.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["first", "second", "third"]);
        let parameter = |offset, size| Parameter { offset, size };
        assert_eq!(found[0].parameters, [parameter(0, 8), parameter(8, 4)]);
        assert!(found[1].parameters.is_empty() && found[2].parameters.is_empty());
    }

    #[test]
    fn each_parameter_lies_at_its_own_alignment() {
        assert_eq!(
            layout(".param .u8 a, .param .u64 b, .param .u16 c, .param .f32 d"),
            [(0, 1), (8, 8), (16, 2), (20, 4)]
        );
    }

    #[test]
    fn arrays_and_explicit_alignment_count() {
        assert_eq!(
            layout(".param .u32 a, .param .align 16 .b8 b[24], .param .b8 c[3], .param .u16 d"),
            [(0, 4), (16, 24), (40, 3), (44, 2)]
        );
        assert_eq!(
            layout(".param .u32 a, .param .align 8 .b8 b [ 4 ]"),
            [(0, 4), (8, 4)]
        );
    }

    #[test]
    fn attributes_of_a_pointer_do_not_move_it() {
        assert_eq!(
            layout(".param .u32 a, .param .u64 .ptr .global .align 256 b, .param .u64 .ptr c"),
            [(0, 4), (8, 8), (16, 8)]
        );
    }

    #[test]
    fn comments_hide_entries_and_separate_words() {
        let ptx = ".version 7.0 // .entry a()\n/* .entry b() */.visible/**/.entry/**/c(/* x */)";
        let found = entries(ptx).expect("readable");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "c");
    }

    #[test]
    fn text_that_is_not_ptx_is_refused() {
        assert_eq!(entries("int main() { return 0; }"), Err(PtxError::NotPtx));
        assert_eq!(entries(""), Err(PtxError::NotPtx));
    }

    #[test]
    fn a_malformed_declaration_is_refused_with_its_entry() {
        for list in [
            ".param .u65 a",
            ".param a",
            ".reg .u64 a",
            ".param .align 3 .u8 a",
            ",",
        ] {
            let error = entries(&format!(".version 7.0 .entry k({list})")).expect_err(list);
            assert!(error.to_string().contains("\"k\""), "{error}");
        }
        assert!(entries(".version 7.0 .entry k(.param .u64 a").is_err());
        assert!(entries(".version 7.0 .entry (").is_err());
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let huge = format!(".param .u64 a[{}]", usize::MAX);
        assert!(entries(&format!(".version 7.0 .entry k({huge})")).is_err());
    }
}
