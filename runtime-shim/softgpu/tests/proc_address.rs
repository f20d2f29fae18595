//! `cuGetProcAddress` and the table that it answers from.

mod driver;

use std::collections::HashSet;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;

use driver::*;
use oversub_softgpu::api::DefaultStream;
use oversub_softgpu::api::unsupported::UNSUPPORTED;

const PER_THREAD: u64 = 2;

fn get(name: &str, version: c_int, flags: u64) -> (CuResult, usize, u32) {
    let name = CString::new(name).expect("no zero");
    let (mut address, mut status) = (null_mut::<c_void>(), 99);
    // SAFETY: a string and valid places for the results.
    let result =
        unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut address, version, flags, &mut status) };
    (result, address as usize, status)
}

/// The address of an exported function.
fn exported(name: &str) -> usize {
    let entry = ENTRY_POINTS.iter().find(|e| e.name == name);
    entry.unwrap_or_else(|| panic!("{name}")).address as usize
}

#[test]
fn every_entry_point_is_found_by_its_base_name_and_its_version() {
    for entry in ENTRY_POINTS {
        let flags = if entry.default == Some(DefaultStream::PerThread) {
            PER_THREAD
        } else {
            0
        };
        let found = get(entry.base, entry.version, flags);
        assert_eq!(
            found,
            (CuResult::SUCCESS, entry.address as usize, 0),
            "{}",
            entry.name
        );
    }
}

#[test]
fn exported_names_are_unique_and_begin_with_their_base() {
    let mut seen = HashSet::new();
    for name in ENTRY_POINTS
        .iter()
        .map(|e| e.name)
        .chain(UNSUPPORTED.iter().copied())
    {
        assert!(seen.insert(name), "{name} twice");
    }
    for entry in ENTRY_POINTS {
        assert!(entry.name.starts_with(entry.base), "{}", entry.name);
        let thread = entry.name.ends_with("_ptsz") || entry.name.ends_with("_ptds");
        assert_eq!(
            thread,
            entry.default == Some(DefaultStream::PerThread),
            "{}",
            entry.name
        );
    }
}

#[test]
fn the_version_chooses_among_the_forms_of_a_function() {
    let prefetch = |version| get("cuMemPrefetchAsync", version, 0).1;
    assert_eq!(prefetch(8000), exported("cuMemPrefetchAsync"));
    assert_eq!(prefetch(12010), exported("cuMemPrefetchAsync"));
    assert_eq!(prefetch(12020), exported("cuMemPrefetchAsync_v2"));
    assert_eq!(prefetch(13000), exported("cuMemPrefetchAsync_v2"));
    assert_eq!(get("cuCtxCreate", 11030, 0).1, exported("cuCtxCreate_v2"));
    assert_eq!(get("cuCtxCreate", 13000, 0).1, exported("cuCtxCreate_v4"));
    assert_eq!(
        get("cuGetProcAddress", 11030, 0).1,
        exported("cuGetProcAddress")
    );
    assert_eq!(
        get("cuGetProcAddress", 12000, 0).1,
        exported("cuGetProcAddress_v2")
    );
}

#[test]
fn flags_choose_the_default_stream_where_there_are_two_forms() {
    let launch = |flags| get("cuLaunchKernel", 13000, flags).1;
    assert_eq!(launch(0), exported("cuLaunchKernel"));
    assert_eq!(launch(1), exported("cuLaunchKernel"));
    assert_eq!(launch(PER_THREAD), exported("cuLaunchKernel_ptsz"));
    assert_eq!(
        get("cuMemcpyHtoD", 13000, PER_THREAD).1,
        exported("cuMemcpyHtoD_v2_ptds")
    );
    assert_eq!(
        get("cuMemAlloc", 13000, PER_THREAD).1,
        exported("cuMemAlloc_v2")
    );
    assert_eq!(get("cuLaunchKernel", 13000, 8).0, CuResult::INVALID_VALUE);
}

#[test]
fn what_is_not_there_is_said_to_be_unknown_or_too_new() {
    assert_eq!(get("cuNoSuchThing", 13000, 0), (CuResult::NOT_FOUND, 0, 1));
    assert_eq!(get("cuMemAlloc_v2", 13000, 0), (CuResult::NOT_FOUND, 0, 1));
    assert_eq!(
        get("cuMemPrefetchBatchAsync", 12080, 0),
        (CuResult::NOT_FOUND, 0, 2)
    );
    for name in ["cuGraphLaunch", "cuMemCreate", "cuArrayCreate"] {
        assert_eq!(get(name, 13000, 0), (CuResult::NOT_FOUND, 0, 1), "{name}");
    }
    let mut address = null_mut();
    // SAFETY: a string and valid places for the results; null is refused.
    unsafe {
        ok(cuGetProcAddress(c"cuInit".as_ptr(), &mut address, 12000, 0));
        assert_eq!(address as usize, exported("cuInit"));
        assert_eq!(
            cuGetProcAddress(c"nope".as_ptr(), &mut address, 12000, 0),
            CuResult::NOT_FOUND
        );
        assert!(address.is_null());
        let null = cuGetProcAddress(std::ptr::null(), &mut address, 12000, 0);
        assert_eq!(null, CuResult::INVALID_VALUE);
        let mut table = std::ptr::null();
        let id = Uuid { bytes: [1; 16] };
        assert_eq!(cuGetExportTable(&mut table, &id), CuResult::NOT_FOUND);
    }
}

#[test]
fn calls_that_are_not_supported_are_refused_and_counted_by_name() {
    use oversub_softgpu::api::unsupported::cuGraphCreate;
    let count = || {
        oversub_softgpu::stats::unsupported()
            .get("cuGraphCreate")
            .copied()
            .unwrap_or(0)
    };
    let before = count();
    // SAFETY: no argument is looked at.
    assert_eq!(unsafe { cuGraphCreate() }, CuResult::NOT_SUPPORTED);
    assert_eq!(count(), before + 1);
}

#[test]
fn results_have_the_names_and_texts_of_the_driver() {
    let mut text = std::ptr::null();
    // SAFETY: a valid place for the result, which is a string.
    unsafe {
        ok(cuGetErrorName(CuResult(2), &mut text));
        assert_eq!(std::ffi::CStr::from_ptr(text), c"CUDA_ERROR_OUT_OF_MEMORY");
        ok(cuGetErrorString(CuResult(700), &mut text));
        assert_eq!(
            std::ffi::CStr::from_ptr(text),
            c"an illegal memory access was encountered"
        );
        assert_eq!(
            cuGetErrorName(CuResult(12345), &mut text),
            CuResult::INVALID_VALUE
        );
        assert!(text.is_null());
    }
}

#[test]
fn the_device_says_what_it_is() {
    driver::init();
    let (mut count, mut device, mut bytes, mut value) = (0, 9, 0, 0);
    let mut name = [1 as std::ffi::c_char; 64];
    let mut version = 0;
    // SAFETY: valid places for the results.
    unsafe {
        ok(cuDeviceGetCount(&mut count));
        ok(cuDeviceGet(&mut device, 0));
        ok(cuDeviceTotalMem_v2(&mut bytes, device));
        ok(cuDeviceGetName(name.as_mut_ptr(), 64, device));
        ok(cuDriverGetVersion(&mut version));
        assert_eq!((count, device, bytes, version), (1, 0, 64 << 20, 13000));
        let name = std::ffi::CStr::from_ptr(name.as_ptr())
            .to_string_lossy()
            .into_owned();
        assert!(name.starts_with("oversub soft GPU (64 MiB"), "{name}");
        for (attribute, expected) in [(75, 8), (76, 0), (89, 1), (83, 1), (40, 2), (88, 0)] {
            ok(cuDeviceGetAttribute(&mut value, attribute, device));
            assert_eq!(value, expected, "attribute {attribute}");
        }
        assert_eq!(
            cuDeviceGetAttribute(&mut value, 9999, device),
            CuResult::INVALID_VALUE
        );
        assert_eq!(cuDeviceGet(&mut device, 1), CuResult::INVALID_DEVICE);
        assert_eq!(cuDeviceTotalMem_v2(&mut bytes, 4), CuResult::INVALID_DEVICE);
        let mut short = [1 as std::ffi::c_char; 4];
        ok(cuDeviceGetName(short.as_mut_ptr(), 4, 0));
        assert_eq!(std::ffi::CStr::from_ptr(short.as_ptr()), c"ove");
    }
}
