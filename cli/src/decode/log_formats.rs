//! How programs report an error in words. The first format that knows a line has it.

use mlx5_wire::syndrome::Syndrome;

use super::{KnownFields, wqe};

/// A report of an error.
#[derive(Debug, Default)]
pub struct Logged {
    /// Line, from 1.
    pub line: usize,
    /// Which program reports it.
    pub printer: Option<&'static str>,
    /// Side, where it says so.
    pub requester: Option<bool>,
    /// Status of verbs, where the report has that and no syndrome.
    pub status: Option<u32>,
    /// `hw_err_synd` and `hw_synd_type`; UCX prints the upper half of the latter.
    pub hardware: Option<(u32, u32)>,
    /// Numbers.
    pub facts: KnownFields,
    /// Notes about this format.
    pub notes: Vec<String>,
}

/// A way to report errors.
pub struct Format {
    /// Text that each report contains.
    pub sign: &'static str,
    /// The program that prints it.
    pub printer: Option<&'static str>,
    /// Reads a report from the text before the sign, and the text from the sign on.
    pub read: fn(&str, &str) -> Option<Logged>,
}

const fn format(
    sign: &'static str,
    printer: &'static str,
    read: fn(&str, &str) -> Option<Logged>,
) -> Format {
    Format { sign, printer: Some(printer), read }
}

/// All formats.
pub const FORMATS: &[Format] = &[
    format("(synd 0x", "UCX", ucx),
    format("rror cqe on cqn ", "the kernel", kernel_cqe),
    format("WC error: ", "mlx5_ib", kernel_wc),
    format("error: ", "mlx5_ib", kernel_event),
    format("nexpected CQE error syndrome ", "DPDK", dpdk),
    format("got completion with err: ", "DOCA", doca),
    format("Got completion ", "NCCL", nccl),
    format("end completion with error", "UCX", ucx_verbs),
    format("Failed status ", "perftest", perftest),
    format("CQE ERR: cqe ", "the Solaris driver", solaris),
    Format { sign: "vendor_err", printer: None, read: status_before },
    Format { sign: "vendor syndrome", printer: None, read: status_before },
    Format { sign: "vendor err", printer: None, read: status_before },
    Format { sign: "): ", printer: None, read: number_and_name },
    Format {
        sign: "ransport retry counter exceeded",
        printer: None,
        read: |_, _| named(Syndrome::TRANSPORT_RETRY_EXC),
    },
    Format {
        sign: "RNR retry counter exceeded",
        printer: None,
        read: |_, _| named(Syndrome::RNR_RETRY_EXC),
    },
    Format {
        sign: "emote access error",
        printer: None,
        read: |_, _| named(Syndrome::REMOTE_ACCESS),
    },
    Format {
        sign: "ocal protection error",
        printer: None,
        read: |_, _| named(Syndrome::LOCAL_PROT),
    },
    Format {
        sign: "emote invalid request error",
        printer: None,
        read: |_, _| named(Syndrome::REMOTE_INVAL_REQ),
    },
    Format {
        sign: "emote operation error",
        printer: None,
        read: |_, _| named(Syndrome::REMOTE_OP),
    },
    Format {
        sign: "ocal QP operation error",
        printer: None,
        read: |_, _| named(Syndrome::LOCAL_QP_OP),
    },
    Format { sign: "ocal length error", printer: None, read: |_, _| named(Syndrome::LOCAL_LENGTH) },
];

/// A number after a key: `key 0x12`, `key=18`, `key: 0x12`; `true` if it was decimal.
fn number(text: &str, key: &str) -> Option<(u32, bool)> {
    let at = text.find(key)? + key.len();
    let rest = text[at..].trim_start_matches([' ', ':', '=', '(', '[']);
    parse(rest)
}

fn parse(text: &str) -> Option<(u32, bool)> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    Some((u32::from_str_radix(&digits[..end], radix).ok()?, radix == 10))
}

fn byte(found: Option<(u32, bool)>) -> Option<u8> {
    found.and_then(|(number, _)| u8::try_from(number).ok())
}

/// The status of verbs with whose name the text begins.
fn status_named(text: &str) -> Option<Syndrome> {
    let named = |syndrome: &u8| {
        let names = Syndrome::new(*syndrome).names();
        names.is_some_and(|names| {
            text.get(..names.verbs.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(names.verbs))
        })
    };
    (0..=0x22).find(named).map(Syndrome::new)
}

fn named(syndrome: Syndrome) -> Option<Logged> {
    let facts = KnownFields { syndrome: Some(syndrome.get()), ..KnownFields::default() };
    Some(Logged {
        facts,
        notes: vec!["known by the name of its status only".into()],
        ..Logged::default()
    })
}

/// A decimal vendor syndrome is often looked up as if it were hexadecimal.
fn note_decimal(logged: &mut Logged, vendor: Option<(u32, bool)>) {
    if let Some((number @ 10..=255, true)) = vendor {
        logged.notes.push(format!(
            "vendor syndrome {number} is printed in decimal: it is {number:#04x}, not 0x{number}"
        ));
    }
}

/// `(synd 0x15 vend 0x81 hw_synd 0/0)`, and `DCI QP 0x14e4 wqe[0]: SEND s-e [...]` after it.
fn ucx(before: &str, after: &str) -> Option<Logged> {
    let mut logged = Logged::default();
    logged.facts.syndrome = byte(number(after, "synd"));
    logged.facts.syndrome?;
    let report = &after[..after.find(')')? + 1];
    logged.facts.vendor = byte(number(report, "vend"));
    if let Some((kind, _)) = number(report, "hw_synd") {
        let error = report.rsplit('/').next().and_then(parse);
        logged.hardware = error.map(|(error, _)| (error, kind << 4));
    }
    let wqe = &after[report.len()..];
    let own = wqe.find("(synd").map_or(wqe, |next| &wqe[..next]);
    let older = |key| number(before.rsplit("rror on").next().unwrap_or_default(), key);
    logged.facts.qpn = number(own, " QP ").or_else(|| older("QP")).map(|found| found.0);
    let index = number(own, "wqe[").or_else(|| older("wqe["));
    logged.facts.wqe_counter = index.and_then(|(index, _)| u16::try_from(index).ok());
    let name = own.split("]: ").nth(1).and_then(|rest| rest.split(' ').next());
    let name = name.or_else(|| {
        own.trim_start().strip_prefix("opcode ").and_then(|rest| rest.split(' ').next())
    });
    logged.facts.opcode = name.and_then(wqe::opcode_of);
    let receive = own.contains("SRQ QP") || own.contains("next_wqe") || before.contains("next wqe");
    logged.requester = if receive { Some(false) } else { logged.facts.opcode.map(|_| true) };
    Some(logged)
}

/// `Error cqe on cqn 0x817, ci 0x8, qn 0x1dbb, opcode 0xd, syndrome 0x1, vendor syndrome 0x68`, and the lines of mlx5_ib
/// `Responder error cqe on cqn 0x406:` and `syndrome 0x5, vendor syndrome 0xf9`.
fn kernel_cqe(before: &str, after: &str) -> Option<Logged> {
    let mut logged = Logged::default();
    let at = after.find("syndrome ")?;
    logged.facts.syndrome = byte(number(after, "syndrome "));
    logged.facts.syndrome?;
    logged.facts.vendor = byte(number(&after[at..], "vendor syndrome"));
    let head = &after[..at];
    logged.facts.ci = number(head, " ci ").map(|found| found.0);
    if let Some(at) = head.find(" qn ").or_else(|| head.find(" sqn ")) {
        logged.facts.qpn = number(&head[at..], "qn ").map(|found| found.0);
    }
    logged.requester = match byte(number(head, "opcode ")) {
        Some(0xd) => Some(true),
        Some(0xe) => Some(false),
        _ if before.ends_with("Responder e") => Some(false),
        _ if before.ends_with("Requestor e") => Some(true),
        _ => None,
    };
    Some(logged)
}

/// `WC error: 4, Message: local protection error`.
fn kernel_wc(_: &str, after: &str) -> Option<Logged> {
    let status = number(after, "WC error").map(|found| found.0).filter(|&status| status != 0)?;
    Some(Logged { status: Some(status), ..Logged::default() })
}

/// `mlx5_bond_0/1: QP 51291 error: local length error (0x8e 0x0 0x0)`.
fn kernel_event(before: &str, after: &str) -> Option<Logged> {
    let qp = before.trim_end().rsplit("QP ").next().filter(|rest| !rest.contains(' '))?;
    let (qpn, _) = parse(qp)?;
    let rest = after.strip_prefix("error: ")?;
    let syndrome = status_named(rest)?;
    let names = syndrome.names()?;
    let mut numbers = rest
        .get(names.verbs.len()..)?
        .trim_start()
        .strip_prefix('(')?
        .split(')')
        .next()?
        .split(' ')
        .map(parse);
    let mut next = || numbers.next().flatten();
    let mut logged = Logged::default();
    logged.facts.syndrome = Some(syndrome.get());
    logged.facts.qpn = Some(qpn);
    logged.facts.vendor = byte(next());
    logged.hardware = Some((next()?.0, next()?.0));
    logged.notes.push("an asynchronous event of the queue pair: no completion says it".into());
    Some(logged)
}

/// `Unexpected CQE error syndrome 0x04 CQN = 128 SQN = 14688 wqe_counter = 1 wq_ci = 2 cq_ci = 0`.
fn dpdk(_: &str, after: &str) -> Option<Logged> {
    let mut logged = Logged::default();
    logged.facts.syndrome = byte(number(after, "syndrome "));
    logged.facts.syndrome?;
    logged.requester = if number(after, "SQN").is_some() {
        Some(true)
    } else {
        number(after, "RQN").map(|_| false)
    };
    logged.facts.qpn = number(after, "SQN").or_else(|| number(after, "RQN")).map(|found| found.0);
    logged.facts.wqe_counter =
        number(after, "wqe_counter").and_then(|(index, _)| u16::try_from(index).ok());
    logged.notes.push("the bytes are in a file of DPDK (dpdk_mlx5_port_..., in /var/log by default): decode that, it says more".into());
    Some(logged)
}

/// `got completion with err: syndrome=0x4, vendor_err_synd=0x53, hw_err_synd=0x9d, hw_synd_type=0, wqe_counter=3 wqe_qpn=1f`.
fn doca(_: &str, after: &str) -> Option<Logged> {
    let mut logged = Logged::default();
    logged.facts.syndrome = byte(number(after, "syndrome="));
    logged.facts.syndrome?;
    logged.facts.vendor = byte(number(after, "vendor_err_synd="));
    let hardware = (number(after, "hw_err_synd="), number(after, "hw_synd_type="));
    if let (Some((error, _)), Some((kind, _))) = hardware {
        logged.hardware = Some((error, kind));
    }
    logged.facts.wqe_counter =
        number(after, "wqe_counter=").and_then(|(index, _)| u16::try_from(index).ok());
    Some(logged)
}

/// `Got completion from peer ... with status=12 opcode=0 len=0 vendor err 129 (Recv)`, `Got completion with error 4, opcode 1,
/// len 21938, vendor err 81`.
fn nccl(_: &str, after: &str) -> Option<Logged> {
    let at = after.find("vendor err")?;
    let status = number(&after[..at], "status=").or_else(|| number(&after[..at], "with error"))?.0;
    let mut logged = Logged { status: Some(status), ..Logged::default() };
    let vendor = number(&after[at..], "vendor err");
    logged.facts.vendor = byte(vendor);
    note_decimal(&mut logged, vendor);
    logged.notes.push("opcode and len are of no meaning in a completion with an error".into());
    (status != 0).then_some(logged)
}

/// `send completion with error: local protection error [qpn 0xf9db wrid 0x149vendor_err 0x51]`,
/// `Send completion with error on qp 0x6214: remote access error syndrome 0x88`.
fn ucx_verbs(_: &str, after: &str) -> Option<Logged> {
    let rest = &after[after.find(": ")? + 2..];
    let syndrome = status_named(rest)?;
    let mut logged = Logged { requester: Some(true), ..Logged::default() };
    logged.facts.syndrome = Some(syndrome.get());
    logged.facts.qpn = number(after, "qpn").or_else(|| number(after, "on qp")).map(|found| found.0);
    logged.facts.vendor = byte(number(rest, "vendor_err").or_else(|| number(rest, "syndrome")));
    Some(logged)
}

/// `Failed status 4: wr_id 0 syndrom 0x51`.
fn perftest(_: &str, after: &str) -> Option<Logged> {
    let status =
        number(after, "Failed status").map(|found| found.0).filter(|&status| status != 0)?;
    let mut logged = Logged { status: Some(status), ..Logged::default() };
    logged.facts.vendor = byte(number(after, "syndrom"));
    logged.notes.push("perftest calls the vendor syndrome syndrom".into());
    Some(logged)
}

/// `CQE ERR: cqe ffffa1 QPN 0x40064 indx 0x1d81 status 0x13 vendor syndrome 0x88`.
fn solaris(_: &str, after: &str) -> Option<Logged> {
    let mut logged = Logged::default();
    logged.facts.syndrome = byte(number(after, "status"));
    logged.facts.syndrome?;
    logged.facts.vendor = byte(number(after, "vendor syndrome"));
    logged.facts.qpn = number(after, "QPN").map(|found| found.0);
    logged.notes.push(
        "an adapter before mlx5, whose syndromes have the same numbers as far as is known".into(),
    );
    Some(logged)
}

/// A vendor syndrome with a status of verbs before it: `status 10, op ..., vendor_err 0x88`, `status=12(...) vendor_err=0x81`.
fn status_before(before: &str, after: &str) -> Option<Logged> {
    let vendor = number(after, "vendor_err")
        .or_else(|| number(after, "vendor syndrome"))
        .or_else(|| number(after, "vendor err"))?;
    // On the same line and near: the text before is cut there.
    let at = before.rfind("status")?;
    let status = number(&before[at..], "status")?.0;
    let mut logged = Logged { status: Some(status), ..Logged::default() };
    logged.facts.vendor = byte(Some(vendor));
    note_decimal(&mut logged, Some(vendor));
    (status != 0 && at + 160 > before.len()).then_some(logged)
}

/// `status: (10): remote access error`, `Request 0x139670660105216 (4): local protection error`.
fn number_and_name(before: &str, after: &str) -> Option<Logged> {
    let open = before.rfind('(')?;
    let (status, _) = parse(&before[open + 1..])?;
    let syndrome = status_named(after.strip_prefix("): ")?)?;
    (syndrome.names()?.status == status)
        .then(|| Logged { status: Some(status), ..Logged::default() })
}
