//! Each target on its corpus, without libFuzzer.

use std::{fs, path::Path};

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let inputs: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(inputs.len() > 20, "{} inputs", inputs.len());
    for input in inputs {
        println!("{}", input.display());
        run(&fs::read(input).unwrap());
    }
}

macro_rules! replay {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), doorbell_fuzz::$target::run);
        })*
    };
}

replay! { commands connections cqes decode firmware packets vfio_user wqes }
