//! Symbols of the C library, read from its dynamic section.
//!
//! `dlsym` is what we replace, so it cannot be asked for itself, and `dlvsym`, which could,
//! is replaced too.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

const NAMES: [&[u8]; 2] = [b"libc.so.6", b"libdl.so.2"];

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// A function of the C library; null where it has none.
pub fn c_library_symbol(name: &CStr) -> *mut c_void {
    let mut search = Search {
        name,
        found: ptr::null_mut(),
    };
    // SAFETY: the callback gets the search back, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// # Safety
/// `info` describes a loaded object and `search` is a [`Search`] that nobody else uses meanwhile.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `c_library_symbol` passes a `Search`, the C library a valid description.
    let (search, info) = unsafe { (&mut *search.cast::<Search<'_>>(), &*info) };
    // SAFETY: the program headers of a loaded object.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Some(dynamic) = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC)
    else {
        return 0;
    };
    let dynamic = (info.dlpi_addr + dynamic.p_vaddr) as usize;
    // SAFETY: the dynamic section of a loaded object ends with a zero tag.
    search.found = unsafe { look_in(info.dlpi_addr as usize, dynamic, search.name) };
    c_int::from(!search.found.is_null())
}

/// # Safety
/// `dynamic` is the address of the dynamic section of an object loaded at `base`.
unsafe fn look_in(base: usize, dynamic: usize, name: &CStr) -> *mut c_void {
    let (mut strings, mut symbols, mut hash, mut soname) = (0, 0, 0, None);
    let mut entry = ptr::with_exposed_provenance::<Dynamic>(dynamic);
    loop {
        // SAFETY: not yet past the terminating entry.
        let Dynamic { tag, value } = unsafe { &*entry };
        match *tag {
            0 => break,
            DT_STRTAB => strings = *value as usize,
            DT_SYMTAB => symbols = *value as usize,
            DT_GNU_HASH => hash = *value as usize,
            DT_SONAME => soname = Some(*value as usize),
            _ => {}
        }
        // SAFETY: the terminating entry is still to come.
        entry = unsafe { entry.add(1) };
    }
    let Some(soname) = soname else {
        return ptr::null_mut();
    };
    // glibc relocates these in place; a C library that does not leaves offsets.
    let absolute = |address: usize| {
        if address < base {
            address + base
        } else {
            address
        }
    };
    if strings == 0 || symbols == 0 || hash == 0 {
        return ptr::null_mut();
    }
    let strings = ptr::with_exposed_provenance::<c_char>(absolute(strings));
    // SAFETY: the name of the object, in its string table.
    let object = unsafe { CStr::from_ptr(strings.add(soname)) };
    if !NAMES.contains(&object.to_bytes()) {
        return ptr::null_mut();
    }
    let symbols = ptr::with_exposed_provenance::<libc::Elf64_Sym>(absolute(symbols));
    let hash = ptr::with_exposed_provenance::<u32>(absolute(hash));
    // SAFETY: the tables of a loaded object.
    unsafe { look_up(base, strings, symbols, hash, name) }
}

/// Walks the bucket of `name` in a GNU hash table.
///
/// # Safety
/// The three tables belong to one object loaded at `base`.
unsafe fn look_up(
    base: usize,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    table: *const u32,
    name: &CStr,
) -> *mut c_void {
    let wanted = name.to_bytes().iter().fold(5381_u32, |hash, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    });
    // SAFETY: a GNU hash table: four words, the filter (64-bit words), buckets, chains.
    unsafe {
        let (buckets, first, filter) = (*table, *table.add(1), *table.add(2));
        if buckets == 0 {
            return ptr::null_mut();
        }
        let bucket = table.add(4 + filter as usize * 2);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((wanted % buckets) as usize);
        if index < first {
            return ptr::null_mut();
        }
        loop {
            let hash = *chain.add((index - first) as usize);
            let symbol = &*symbols.add(index as usize);
            if hash | 1 == wanted | 1
                && symbol.st_shndx != 0
                && CStr::from_ptr(strings.add(symbol.st_name as usize)) == name
            {
                return ptr::with_exposed_provenance_mut(base + symbol.st_value as usize);
            }
            if hash & 1 != 0 {
                return ptr::null_mut();
            }
            index += 1;
        }
    }
}
