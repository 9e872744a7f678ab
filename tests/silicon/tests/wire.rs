//! mlx5-wire reads the same fields in each dump as were read by eye, and the signature is right where the counter is
//! known.

use doorbell_silicon::{Fields, cqes, dumps};
use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe};
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::signature::{is_signed, residue, signature};
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::vendor::{self, Side};

#[test]
fn the_collection_is_whole() {
    assert_eq!((cqes().count(), dumps().len()), (28, 32));
    assert!(cqes().all(|dump| dump.bytes.len() == 64 && dump.fields.is_some()));
    assert!(dumps().iter().all(|dump| !dump.source.is_empty()));
}

#[test]
fn each_field_has_the_value_that_was_read_by_eye() {
    for dump in cqes() {
        let (cqe, general) = (ErrorCqe::from_bytes(&dump.cqe()), Cqe64::from_bytes(&dump.cqe()));
        assert_eq!(general.format(), CqeFormat::Plain, "{}", dump.name);
        let opcode = match general.opcode() {
            CqeOpcode::RequesterError => "REQ_ERR",
            CqeOpcode::ResponderError => "RESP_ERR",
            other => panic!("{}: {other:?}", dump.name),
        };
        let fields = Fields {
            opcode: opcode.to_owned(),
            owner: general.owner(),
            syndrome: cqe.syndrome,
            vendor: cqe.vendor_err_synd,
            hw_err_synd: cqe.hw_err_synd,
            hw_synd_type: cqe.hw_synd_type,
            send_opcode: cqe.send_opcode(),
            qpn: cqe.qpn(),
            wqe_counter: cqe.wqe_counter.get(),
            user_index: cqe.srqn_uidx.get() & 0xff_ffff,
        };
        assert_eq!(Some(fields), dump.fields, "{}", dump.name);
        assert_eq!(cqe.to_bytes(), dump.cqe());
    }
}

#[test]
fn adapters_sign_with_the_counter() {
    let known: Vec<_> = cqes().filter(|dump| dump.counter.is_some()).collect();
    assert_eq!(known.len(), 7);
    for dump in known {
        let counter = dump.counter.unwrap();
        assert!(is_signed(&dump.cqe(), counter), "{}", dump.name);
        assert!(!is_signed(&dump.cqe(), counter + 1), "{}", dump.name);
        assert_eq!(signature(&dump.cqe(), counter), dump.cqe()[62], "{}", dump.name);
    }
    // Consecutive CQEs of one queue: only the lowest bit of the counter differs.
    let residue_of = |name| residue(&cqes().find(|dump| dump.name == name).unwrap().cqe());
    assert_eq!((residue_of("C3"), residue_of("C4")), (0x28, 0x29));
}

#[test]
fn each_pair_of_syndromes_is_known_and_on_its_side() {
    for dump in cqes().filter(|dump| dump.name != "S1") {
        let fields = dump.fields.as_ref().unwrap();
        let known = vendor::find(Syndrome::new(fields.syndrome), fields.vendor);
        let known = known.unwrap_or_else(|| panic!("{}", dump.name));
        let side = if fields.opcode == "REQ_ERR" { Side::Requester } else { Side::Responder };
        assert!(known.side == side || known.side == Side::Either, "{}", dump.name);
    }
}

#[test]
fn the_report_names_the_status_of_the_syndrome() {
    for dump in cqes() {
        let Some(printed) = &dump.printed else { continue };
        let names = Syndrome::new(dump.fields.as_ref().unwrap().syndrome).names().unwrap();
        // A name or a number of verbs; the network driver prints the syndrome itself.
        let syndrome = format!("syndrome 0x{:x}", dump.fields.as_ref().unwrap().syndrome);
        let status =
            [format!("({})", names.status), format!("status {}", names.status), format!("0x{:x}", names.status)];
        assert!(
            printed.contains(names.verbs)
                || printed.contains(&syndrome)
                || status.iter().any(|status| printed.contains(status)),
            "{}: {printed}: {names:?}",
            dump.name
        );
    }
}

#[test]
fn wqes_say_which_cqe_is_theirs() {
    let control = |name: &str| {
        let dump = dumps().iter().find(|dump| dump.name == name).unwrap();
        (ControlSegment::from_bytes(dump.bytes.first_chunk().unwrap()), &dump.bytes)
    };
    let (w1, bytes) = control("W1");
    assert_eq!((w1.opcode(), w1.index(), w1.qpn(), w1.ds()), (WqeOpcode::SEND, 0xf, 0x1dbb, 3));
    assert_eq!(w1.fm_ce_se, CQ_UPDATE);
    let data = DataSegment::from_bytes(bytes[32..48].try_into().unwrap());
    let data = (data.byte_count.get(), data.lkey.get(), data.addr.get());
    assert_eq!(data, (0x2b, 0x80000, 0x5_9ee3_0800));
    let (w2, _) = control("W2");
    assert_eq!((w2.opcode(), w2.index(), w2.qpn(), w2.ds()), (WqeOpcode::UMR, 0, 0x104f, 12));
    assert_eq!(w2.imm.get(), 0x18_2e00, "the key that it changes");
    let (w3, _) = control("W3");
    assert_eq!((w3.opcode(), w3.qpn()), (WqeOpcode::SEND_INVAL, 0xd9_ed80));
    let (w4, _) = control("W4");
    assert_eq!((w4.opcode().get(), w4.qpn(), w4.ds()), (0x1e, 0xe, 4));
}
