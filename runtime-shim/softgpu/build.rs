//! Names the library `libcuda.so.1` and binds its calls to itself.
//!
//! Without `-Bsymbolic` a preloaded library that interposes an entry point would also
//! catch the calls that this library makes to its own functions. It stays mapped once it
//! was loaded (`-z nodelete`): its engines are threads, and programs do close and reopen it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
