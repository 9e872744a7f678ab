//! The bound structures and constants against the headers that are installed.
//!
//! A C program, compiled here, prints the layout in C. Newer headers may append to a structure: each
//! known field must have the same offset and size as in Rust, and the structure may be longer in C.

#[macro_use]
mod structure;
mod structs;

use std::path::Path;
use std::process::Command;
use std::{env, fs};
use structure::{Field, Structure, c_name};

const HEADERS: &str = include_str!("../../build/headers.h");
/// Bound by hand, in part.
const BY_HAND: &str = "#include <rdma/rdma_cma.h>\n";
const CARRIED: &str = include_str!("../../src/generated/verbs.rs");

/// Compiles a C program that prints the expressions, and returns its output.
fn evaluate(name: &str, expressions: &[String]) -> Vec<i128> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (directory.join(format!("{name}.c")), directory.join(name));
    let mut text = format!("{HEADERS}{BY_HAND}#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n");
    for expression in expressions {
        text += &format!("\tprintf(\"%lld\\n\", (long long)({expression}));\n");
    }
    text += "\treturn 0;\n}\n";
    fs::write(&source, text).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| String::from("cc"));
    let compiled = Command::new(compiler).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success(), "{} does not compile", source.display());
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn structures_lie_in_memory_as_in_c() {
    let mut expressions = Vec::new();
    for structure in structs::ALL {
        let c = structure.c;
        expressions.push(format!("sizeof({c})"));
        expressions.push(format!("_Alignof({c})"));
        for field in structure.fields {
            let name = c_name(field.path);
            expressions.push(format!("offsetof({c}, {name})"));
            expressions.push(format!("sizeof((({c} *)0)->{name})"));
        }
    }
    let mut numbers = evaluate("layout", &expressions).into_iter().map(|n| n as usize);
    let mut next = || numbers.next().unwrap();

    let mut wrong = Vec::new();
    let mut fields = 0;
    for structure in structs::ALL {
        let (size, align) = (next(), next());
        if size < structure.size || align != structure.align {
            wrong.push(format!(
                "{}: {size} bytes aligned to {align} in C, {} aligned to {} here",
                structure.c, structure.size, structure.align
            ));
        }
        // `struct verbs_context` grows at its front.
        let shift = if structure.c == "struct verbs_context" { size - structure.size } else { 0 };
        for field in structure.fields {
            let Field { path, offset, size } = field;
            let (c_offset, c_size) = (next(), next());
            if (c_offset, c_size) != (offset + shift, *size) {
                wrong.push(format!(
                    "{}: {path} is {c_size} bytes at {c_offset} in C, {size} at {offset} here",
                    structure.c
                ));
            }
            fields += 1;
        }
    }
    println!("{} structures, {fields} fields", structs::ALL.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Splits the bindings into the type items `pub struct` and `pub union` with their fields.
fn bound_types() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut types: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in CARRIED.lines() {
        let item = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub union "));
        if let Some(name) = item {
            types.push((name.split_whitespace().next().unwrap(), Vec::new()));
            inside = true;
        } else if line == "}" {
            inside = false;
        } else if let (true, Some(field)) = (inside, line.strip_prefix("    pub ")) {
            types.last_mut().unwrap().1.push(field.split(':').next().unwrap());
        }
    }
    types
}

#[test]
fn no_bound_structure_or_field_is_left_out() {
    let types = bound_types();
    assert!(types.len() > 100, "only {} types were found in the bindings", types.len());
    for (name, fields) in types {
        // A type without members, or with a made-up one, is known to C by name only.
        if matches!(fields[..], [] | ["_address"]) {
            continue;
        }
        // The members of an anonymous type are compared as parts of the one around it.
        let (outer, _) = name.split_once("__bindgen_ty_").unwrap_or((name, ""));
        let structure = structs::ALL.iter().find(|s| s.name == outer);
        let structure = structure.unwrap_or_else(|| panic!("{outer} is not compared"));
        for field in fields.into_iter().filter(|&field| field != "_bindgen_opaque_blob") {
            let mut parts = structure.fields.iter().flat_map(|f| f.path.split('.'));
            assert!(parts.any(|part| part == field), "{name}: {field} is not compared");
        }
    }
}

#[test]
fn constants_have_the_values_of_the_headers() {
    let constants: Vec<(&str, i128)> = CARRIED
        .split("\npub const ")
        .skip(1)
        .filter_map(|text| {
            let (name, rest) = text.split_once(':')?;
            let (_, value) = rest.split_once(';')?.0.split_once('=')?;
            Some((name, value.trim().parse().unwrap()))
        })
        // "The next bit that has no meaning yet": it moves when one gets a meaning.
        .filter(|(name, _)| !name.ends_with("_RESERVED"))
        .collect();
    assert!(constants.len() > 400, "only {} constants were found", constants.len());
    let expressions: Vec<String> = constants.iter().map(|(name, _)| name.to_string()).collect();
    for ((name, here), c) in constants.iter().zip(evaluate("constants", &expressions)) {
        assert_eq!(c, *here, "{name}");
    }

    // Constants that are macros in C and written by hand here.
    let by_hand = [
        ("IBV_ACCESS_OPTIONAL_RANGE", rdma_core_sys::IBV_ACCESS_OPTIONAL_RANGE as i128),
        ("IBV_QPF_GRH_REQUIRED", rdma_core_sys::IBV_QPF_GRH_REQUIRED as i128),
        ("IBV_ADVISE_MR_ADVICE_PREFETCH", rdma_core_sys::IBV_ADVISE_MR_ADVICE_PREFETCH as i128),
        ("IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE", rdma_core_sys::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE as i128),
        ("IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT", rdma_core_sys::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT as i128),
        ("IBV_ALLOCATOR_USE_DEFAULT", rdma_core_sys::IBV_ALLOCATOR_USE_DEFAULT as usize as i64 as i128),
        ("__VERBS_ABI_IS_EXTENDED", rdma_core_sys::VERBS_ABI_IS_EXTENDED as i64 as i128),
        ("RDMA_PS_TCP", rdma_core_sys::RDMA_PS_TCP as i128),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", rdma_core_sys::RDMA_CM_EVENT_ADDR_RESOLVED as i128),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", rdma_core_sys::RDMA_CM_EVENT_ROUTE_RESOLVED as i128),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", rdma_core_sys::RDMA_CM_EVENT_CONNECT_REQUEST as i128),
        ("RDMA_CM_EVENT_CONNECT_RESPONSE", rdma_core_sys::RDMA_CM_EVENT_CONNECT_RESPONSE as i128),
        ("RDMA_CM_EVENT_REJECTED", rdma_core_sys::RDMA_CM_EVENT_REJECTED as i128),
        ("RDMA_CM_EVENT_ESTABLISHED", rdma_core_sys::RDMA_CM_EVENT_ESTABLISHED as i128),
        ("RDMA_CM_EVENT_DISCONNECTED", rdma_core_sys::RDMA_CM_EVENT_DISCONNECTED as i128),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", rdma_core_sys::RDMA_CM_EVENT_DEVICE_REMOVAL as i128),
        ("RDMA_CM_EVENT_TIMEWAIT_EXIT", rdma_core_sys::RDMA_CM_EVENT_TIMEWAIT_EXIT as i128),
        ("MLX5DV_UAR_ALLOC_TYPE_BF", rdma_core_sys::MLX5DV_UAR_ALLOC_TYPE_BF as i128),
        ("MLX5DV_UAR_ALLOC_TYPE_NC", rdma_core_sys::MLX5DV_UAR_ALLOC_TYPE_NC as i128),
    ];
    let expressions: Vec<String> = by_hand.iter().map(|(name, _)| name.to_string()).collect();
    for ((name, here), c) in by_hand.iter().zip(evaluate("by-hand", &expressions)) {
        assert_eq!(c, *here, "{name}");
    }
}
