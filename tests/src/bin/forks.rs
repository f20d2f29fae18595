//! A CUDA program that forks in the middle of its work, then goes on: for the suites.
//!
//! `forks exit|exec|cuda`: what the child does. Prints `equal` if all that the kernels
//! wrote before and after the fork is there.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::process::ExitCode;
use std::ptr::null;

use libloading::Library;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use oversub_workloads::sequence;

type Handle = *mut c_void;

/// 24 MiB each: four of them are more than the suites' device has.
const WORDS: u64 = 6 << 20;
const ARRAYS: u32 = 4;

const MODULE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry fill_u32(.param .u64 fill_u32_param_0, .param .u64 fill_u32_param_1, \
    .param .u32 fill_u32_param_2, .param .u32 fill_u32_param_3)\n{\n ret;\n}\n";

struct Cuda {
    library: Library,
}

macro_rules! call {
    ($cuda:expr, $name:literal, ($($kind:ty),*), ($($value:expr),*)) => {{
        // SAFETY: the signatures are those of cuda.h and every pointer is valid for the call.
        let code = unsafe {
            let function = $cuda
                .library
                .get::<unsafe extern "C" fn($($kind),*) -> c_int>($name.as_bytes())
                .expect($name);
            function($($value),*)
        };
        code
    }};
}

fn main() -> ExitCode {
    let way = std::env::args().nth(1).unwrap_or_default();
    // SAFETY: the driver's constructors expect nothing.
    let library = unsafe { Library::new("libcuda.so.1") }.expect("finds the driver");
    let cuda = Cuda { library };
    let (mut context, mut module, mut kernel): (Handle, Handle, Handle) = (
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    );
    let text = CString::new(MODULE).expect("has no zero");
    let name = c"fill_u32";
    let start = [
        call!(cuda, "cuInit", (c_uint), (0)),
        call!(
            cuda,
            "cuDevicePrimaryCtxRetain",
            (*mut Handle, c_int),
            (&raw mut context, 0)
        ),
        call!(cuda, "cuCtxSetCurrent", (Handle), (context)),
        call!(
            cuda,
            "cuModuleLoadData",
            (*mut Handle, *const c_void),
            (&raw mut module, text.as_ptr().cast())
        ),
        call!(
            cuda,
            "cuModuleGetFunction",
            (*mut Handle, Handle, *const c_char),
            (&raw mut kernel, module, name.as_ptr())
        ),
    ];
    assert_eq!(start, [0; 5], "the driver starts");
    let arrays: Vec<u64> = (0..ARRAYS)
        .map(|_| {
            let mut array = 0;
            let bytes = WORDS as usize * 4;
            assert_eq!(
                call!(
                    cuda,
                    "cuMemAlloc_v2",
                    (*mut u64, usize),
                    (&raw mut array, bytes)
                ),
                0
            );
            array
        })
        .collect();
    for (seed, array) in arrays.iter().enumerate() {
        fill(&cuda, kernel, *array, seed as u32);
    }
    // SAFETY: the child makes only the calls that it is there to test, then ends.
    match unsafe { fork() }.expect("forks") {
        ForkResult::Child => child(&cuda, &way),
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("waits for the child");
            assert_eq!(status, WaitStatus::Exited(child, 0), "the child ends well");
        }
    }
    fill(&cuda, kernel, arrays[0], 77);
    let first = [77].into_iter().chain(1..ARRAYS);
    let equal = first
        .zip(&arrays)
        .all(|(seed, array)| read_back(&cuda, *array) == expected(seed));
    println!("{}", if equal { "equal" } else { "different" });
    if equal {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn child(cuda: &Cuda, way: &str) -> ! {
    let code = match way {
        "exec" => {
            let error =
                std::os::unix::process::CommandExt::exec(&mut std::process::Command::new("true"));
            panic!("cannot become `true`: {error}");
        }
        "cuda" => {
            // CUDA does not work in a forked child; all that is asked is that it says so
            // (any answer but a hang or a crash).
            let mut array = 0;
            call!(
                cuda,
                "cuMemAlloc_v2",
                (*mut u64, usize),
                (&raw mut array, 4 << 20)
            );
            0
        }
        _ => 0,
    };
    // SAFETY: ends the child without running what the parent registered.
    unsafe { libc::_exit(code) }
}

fn fill(cuda: &Cuda, kernel: Handle, array: u64, seed: u32) {
    let (words, first) = (WORDS, 0_u32);
    let parameters: [*const c_void; 4] = [
        (&raw const array).cast(),
        (&raw const words).cast(),
        (&raw const first).cast(),
        (&raw const seed).cast(),
    ];
    type Size = c_uint;
    let blocks = (WORDS / 256) as c_uint;
    let code = call!(
        cuda,
        "cuLaunchKernel",
        (
            Handle,
            Size,
            Size,
            Size,
            Size,
            Size,
            Size,
            Size,
            Handle,
            *const *const c_void,
            *const *const c_void
        ),
        (
            kernel,
            blocks,
            1,
            1,
            256,
            1,
            1,
            0,
            std::ptr::null_mut(),
            parameters.as_ptr(),
            null()
        )
    );
    assert_eq!(code, 0, "the launch succeeds");
    assert_eq!(
        call!(cuda, "cuCtxSynchronize", (), ()),
        0,
        "the kernel succeeds"
    );
}

fn read_back(cuda: &Cuda, array: u64) -> Vec<u32> {
    let mut words = vec![0_u32; WORDS as usize];
    let bytes = words.len() * 4;
    let code = call!(
        cuda,
        "cuMemcpyDtoH_v2",
        (*mut c_void, u64, usize),
        (words.as_mut_ptr().cast(), array, bytes)
    );
    assert_eq!(code, 0, "the copy succeeds");
    words
}

/// What the kernel writes: word `i` of sequence `seed`.
fn expected(seed: u32) -> Vec<u32> {
    (0..WORDS as u32)
        .map(|index| sequence::word(index, seed))
        .collect()
}
