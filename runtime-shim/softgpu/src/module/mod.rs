//! Modules and functions: what was loaded, and which of the soft GPU's kernels it names.
//!
//! A module is PTX text. Its entries give names and parameter layouts ([`ptx`]); the code
//! comes from [`crate::kernels`] by name. A module that holds machine code cannot run here.

pub mod ptx;

use std::ffi::CString;
use std::sync::Mutex;

use crate::abi::CuResult;
use crate::context::Context;
use crate::handle::Table;
use crate::kernels::{KERNELS, Kernel, Param};
use ptx::Parameter;

/// Why an image cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Machine code.
    #[error("the module is {0}, and the soft GPU runs PTX; build the program with PTX in it")]
    MachineCode(&'static str),
    /// Not text.
    #[error("the module is neither PTX text nor a known binary; pass zero-terminated PTX")]
    NotText,
    /// PTX with a fault.
    #[error("the module's PTX cannot be used: {0}")]
    Ptx(#[from] ptx::PtxError),
}

impl ImageError {
    /// What the program is told.
    pub fn result(&self) -> CuResult {
        match self {
            ImageError::MachineCode(_) => CuResult::NO_BINARY_FOR_GPU,
            ImageError::NotText => CuResult::INVALID_IMAGE,
            ImageError::Ptx(ptx::PtxError::NotPtx) => CuResult::INVALID_IMAGE,
            ImageError::Ptx(_) => CuResult::INVALID_PTX,
        }
    }
}

/// One entry of a loaded module.
pub struct Function {
    /// Its name, as the program asked for it.
    pub name: CString,
    /// The parameters that the PTX declares.
    pub parameters: Vec<Parameter>,
    /// The code; none: the soft GPU does not have it.
    pub kernel: Option<&'static Kernel>,
    /// The code's parameters fit those of the PTX.
    pub fits: bool,
    /// Handle of its module.
    pub module: usize,
    /// Its context.
    pub context: &'static Context,
}

impl Function {
    /// Bytes of the whole parameter buffer.
    pub fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |p| p.offset + p.size)
    }
}

/// A loaded module.
pub struct Module {
    entries: Vec<ptx::Entry>,
    context: &'static Context,
    /// Handles of the functions that were asked for, by the entry's place.
    functions: Mutex<Vec<(usize, usize)>>,
}

/// All modules. None is used again after its end.
pub static MODULES: Table<Module> = Table::new(4);
/// All functions. None is used again after its end.
pub static FUNCTIONS: Table<Function> = Table::new(5);

/// Loads an image.
///
/// # Errors
/// [`ImageError`].
pub fn load(image: &[u8], context: &'static Context) -> Result<Option<usize>, ImageError> {
    let text = std::str::from_utf8(image).map_err(|_| ImageError::NotText)?;
    let entries = ptx::entries(text)?;
    let module = Module {
        entries,
        context,
        functions: Mutex::default(),
    };
    Ok(MODULES.insert(|_| module).map(|(handle, _)| handle))
}

/// What the first bytes of an image say.
///
/// # Safety
/// `image` points to at least four readable bytes, or to a string that ends before.
pub unsafe fn machine_code(image: *const u8) -> Option<&'static str> {
    let mut head = [0u8; 4];
    for (at, byte) in head.iter_mut().enumerate() {
        // SAFETY: all bytes before were not zero, so the string has not ended.
        *byte = unsafe { image.add(at).read() };
        if *byte == 0 {
            break;
        }
    }
    match head {
        [0x7f, b'E', b'L', b'F'] => Some("machine code (a cubin)"),
        // __fatBinC_Wrapper_t and fatbin header (fatbinary_section.h).
        [0xb1, 0x43, 0x62, 0x46] | [0x50, 0xed, 0x55, 0xba] => Some("a fat binary"),
        _ => None,
    }
}

/// The handle of an entry of a module.
///
/// # Errors
/// `INVALID_HANDLE` for a dead module, `NOT_FOUND` for a name that it does not declare.
pub fn function(module: usize, name: &str) -> Result<usize, CuResult> {
    let loaded = MODULES.get(module).ok_or(CuResult::INVALID_HANDLE)?;
    let at = loaded
        .entries
        .iter()
        .position(|e| e.name == name)
        .ok_or(CuResult::NOT_FOUND)?;
    let mut functions = loaded
        .functions
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, handle)) = functions.iter().find(|(entry, _)| *entry == at) {
        return Ok(*handle);
    }
    let entry = &loaded.entries[at];
    let kernel = KERNELS.iter().find(|k| k.name == name);
    let function = Function {
        name: CString::new(name).map_err(|_| CuResult::INVALID_VALUE)?,
        parameters: entry.parameters.clone(),
        kernel,
        fits: kernel.is_some_and(|k| fits(k, &entry.parameters)),
        module,
        context: loaded.context,
    };
    let (handle, _) = FUNCTIONS
        .insert(|_| function)
        .ok_or(CuResult::OUT_OF_MEMORY)?;
    functions.push((at, handle));
    Ok(handle)
}

/// Ends a module and its functions.
///
/// # Errors
/// `INVALID_HANDLE` for a dead module.
pub fn unload(module: usize) -> Result<(), CuResult> {
    let unloaded = MODULES.remove(module).ok_or(CuResult::INVALID_HANDLE)?;
    let functions = unloaded
        .functions
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for (_, handle) in functions.iter() {
        FUNCTIONS.remove(*handle);
    }
    Ok(())
}

/// Whether a kernel's parameters are those that the PTX declares.
fn fits(kernel: &Kernel, declared: &[Parameter]) -> bool {
    kernel.params.len() == declared.len()
        && kernel.params.iter().zip(declared).all(|(own, declared)| {
            declared.size
                == match own {
                    Param::Pointer | Param::U64 => 8,
                    Param::U32 | Param::F32 => 4,
                }
        })
}
