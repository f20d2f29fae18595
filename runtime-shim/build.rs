//! Link options of `liboversub.so`.

fn main() {
    // Our own references to what we export must reach ourselves, never another library that
    // stands before us in the search order.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboversub.so");
    println!("cargo::rerun-if-changed=build.rs");
}
