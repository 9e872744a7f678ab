//! Finds libibverbs; with the feature `bindgen` also makes the bindings anew.

#[cfg(feature = "bindgen")]
mod generate;

fn main() {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rustc-link-lib=ibverbs");
    #[cfg(feature = "bindgen")]
    {
        let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
        std::fs::write(out.join("bindings.rs"), generate::generate(None).unwrap()).unwrap();
    }
}
