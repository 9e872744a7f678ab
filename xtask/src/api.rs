//! The public interface of the library is the one that `src/api.txt` lists, so that a review sees each change of it.
//!
//! The list is made from the JSON of rustdoc, which has items that macros write and fields of variants, too. Stable
//! compilers write JSON only if they are told to be unstable ones, and its format changes with the compiler: so it
//! comes from the oldest supported toolchain, whose format `public-api` reads.

use std::fs;

use public_api::Builder;

use crate::Result;
use crate::isolate::Totals;
use crate::session::{Session, built, oldest_toolchain, skip, there_is};

/// Compares the interface with the list.
pub fn run(session: &Session) -> Result<Totals> {
    let toolchain = oldest_toolchain(session)?;
    if !there_is(&toolchain) {
        return Ok(skip(&format!("Rust {toolchain} is not installed")));
    }
    let mut rustdoc = session.cargo(&format!("+{toolchain} rustdoc -p doorbell --lib --all-features --quiet --locked"));
    rustdoc.args(["--", "-Zunstable-options", "--output-format", "json"]).env("RUSTC_BOOTSTRAP", "1");
    let totals = built(&mut rustdoc)?;
    if !totals.is_success() {
        return Ok(totals);
    }
    let json = session.target.join("doc/doorbell.json");
    let api = Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true).build();
    let api = api.map_err(|error| format!("the JSON of rustdoc: {error}"))?;
    let list = list(api.items().map(ToString::to_string));
    if fs::read_to_string(session.root.join("src/api.txt")).is_ok_and(|listed| listed == list) {
        return Ok(totals);
    }
    let place = session.target.join("api.txt");
    fs::write(&place, list).map_err(|e| format!("{}: {e}", place.display()))?;
    let place = place.display();
    Err(format!("the interface has changed: compare {place} with src/api.txt, and copy it there if it is meant so"))
}

/// Leaves out the methods that a trait prescribes, and the heads of implementations without a trait.
fn list(items: impl Iterator<Item = String>) -> String {
    let mut list = String::new();
    let mut prescribed = false;
    for item in items {
        let words = item.trim_start_matches("unsafe ");
        let is_part = ["pub fn", "pub unsafe fn", "pub const ", "pub async fn", "pub type "].iter();
        if words.starts_with("impl") {
            prescribed = words.contains(" for ");
            if !prescribed || words.contains("::StructuralPartialEq for") {
                continue;
            }
        } else if prescribed && is_part.clone().any(|part| words.starts_with(part)) {
            continue;
        } else {
            prescribed = false;
        }
        list += &item.replace("doorbell::", "");
        list.push('\n');
    }
    list
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn methods_of_traits_are_left_out_and_own_ones_are_not() {
        let items = [
            "pub mod doorbell",
            "pub struct doorbell::a::One",
            "impl doorbell::a::One",
            "pub fn doorbell::a::One::two(&self) -> u8",
            "pub const doorbell::a::One::SIX: u8",
            "impl core::clone::Clone for doorbell::a::One",
            "pub fn doorbell::a::One::clone(&self) -> doorbell::a::One",
            "impl core::marker::StructuralPartialEq for doorbell::a::One",
            "unsafe impl core::marker::Send for doorbell::a::One",
            "pub enum doorbell::Four",
            "pub doorbell::Four::Five",
            "pub doorbell::Four::Five::len: usize",
            "pub fn doorbell::seven()",
        ];
        let expected = "pub mod doorbell\n\
                        pub struct a::One\n\
                        pub fn a::One::two(&self) -> u8\n\
                        pub const a::One::SIX: u8\n\
                        impl core::clone::Clone for a::One\n\
                        unsafe impl core::marker::Send for a::One\n\
                        pub enum Four\n\
                        pub Four::Five\n\
                        pub Four::Five::len: usize\n\
                        pub fn seven()\n";
        assert_eq!(list(items.map(String::from).into_iter()), expected);
    }
}
