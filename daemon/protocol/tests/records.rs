//! What the records and messages look like on the wire, and what becomes of broken ones.
#![cfg(not(loom))]

use oversub_protocol::PROTOCOL_VERSION;
use oversub_protocol::command::{CommandRecord, Operation, queue};
use oversub_protocol::decode::{DecodeError, Record};
use oversub_protocol::encode::{Function, Launch, LaunchShape, name_hash};
use oversub_protocol::event::{
    CopyRecord, Kind, LaunchRecord, MAX_LAUNCH_WORDS, MAX_NAME_BYTES, MAX_SLOTS, MemoryRecord,
    Words,
};
use oversub_protocol::handshake::{HandshakeError, Hello, MAGIC, Status, Welcome, padded};
use oversub_protocol::layout::{
    MAX_RING_SLOTS, SlotCountError, check_slots, commands_memfd, events_memfd,
};
use oversub_protocol::ring::Encode;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

fn slots(record: &impl Encode) -> Vec<Words> {
    (0..record.slots())
        .map(|index| record.slot(index))
        .collect()
}

fn hex(record: &impl Encode) -> String {
    let words = slots(record);
    let hex = |slot: &Words| {
        slot.as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let lines: Vec<String> = words.iter().map(hex).collect();
    lines.join("\n")
}

const SHAPE: LaunchShape = LaunchShape {
    stream: 3,
    flags: 0,
    seq: 0x1122,
    function: 5,
    grid: [0x100, 2, 1],
    block: [256, 4, 1],
};

#[test]
fn the_bytes_of_each_record_are_fixed() {
    assert_eq!(
        hex(&MemoryRecord::new(
            Kind::ALLOC,
            255,
            MemoryRecord::MANAGED,
            7,
            0x7f00_0020_0000,
            4096
        )),
        "030001ff01000000070000000000000000002000007f00000010000000000000\
         000000000000000000000000000000000000000000000000"
    );
    assert_eq!(
        hex(&CopyRecord::copy(
            2,
            CopyRecord::SRC_MANAGED,
            9,
            0x1000,
            0x2000,
            0x30
        )),
        "07000102020000000900000000000000001000000000000000200000000000003000000000000000\
         00000000000000000000000000000000"
    );
    assert_eq!(
        hex(&CopyRecord::memset(
            2,
            CopyRecord::DST_MANAGED,
            10,
            0x1000,
            0x30
        )),
        "08000102010000000a00000000000000001000000000000000000000000000003000000000000000\
         00000000000000000000000000000000"
    );
    assert_eq!(
        hex(&Launch::new(SHAPE, &[0xa1, 0xa2, 0xa3])),
        "020002030000000022110000000000000001000002000000010000000500000000010400010003\
         00a100000000000000a200000000000000\n\
         a3000000000000000000000000000000000000000000000000000000000000000000000000000000\
         00000000000000000000000000000000"
    );
    assert_eq!(
        hex(&Function::new(5, 3, b"axpy")),
        "010002ff0300000005000000040000006729770d849c6a3200000000000000000000000000000000\
         00000000000000000000000000000000\n\
         61787079000000000000000000000000000000000000000000000000000000000000000000000000\
         00000000000000000000000000000000"
    );
    let command = CommandRecord {
        operation: Operation::EVICT,
        queue: queue::OUT,
        reserved: 0,
        id: 77,
        address: 0x7f00_0020_0000,
        bytes: 0x40_0000,
        cause_ns: 0x0102,
        reserved_words: [0; 3],
    };
    assert_eq!(
        hex(&command),
        "020001004d00000000002000007f0000000040000000000002010000000000000000000000000000\
         00000000000000000000000000000000"
    );
}

#[test]
fn a_launch_carries_as_many_words_as_fit_and_says_when_it_was_cut() {
    let words: Vec<u64> = (0..MAX_LAUNCH_WORDS as u64 + 9).collect();
    let launch = Launch::new(SHAPE, &words);
    assert_eq!(launch.slots(), MAX_SLOTS);
    let encoded = slots(&launch);
    let Ok(Record::Launch {
        record,
        words: found,
    }) = Record::decode(&encoded)
    else {
        panic!("not a launch");
    };
    assert_eq!(found, &words[..MAX_LAUNCH_WORDS]);
    assert_eq!(record.head.flags, LaunchRecord::FLAG_TRUNCATED);
}

#[test]
fn a_long_name_is_cut_between_characters_and_told_apart_by_its_hash() {
    let long = format!("x{}", "é".repeat(300));
    let encoded = slots(&Function::new(1, 2, long.as_bytes()));
    let Ok(Record::Function { record, name }) = Record::decode(&encoded) else {
        panic!("not a function");
    };
    assert_eq!(record.name_bytes as usize, MAX_NAME_BYTES);
    assert_eq!(
        name.len(),
        MAX_NAME_BYTES - 1,
        "the last byte is half of an é"
    );
    assert!(long.starts_with(name));
    assert_eq!(record.name_hash, name_hash(long.as_bytes()));
}

#[test]
fn each_memory_kind_decodes_to_its_own_record() {
    let of = |kind| slots(&MemoryRecord::new(kind, 1, 0, 2, 0x20_0000, 512));
    assert!(matches!(
        Record::decode(&of(Kind::ALLOC)),
        Ok(Record::Alloc(_))
    ));
    assert!(matches!(
        Record::decode(&of(Kind::FREE)),
        Ok(Record::Free(_))
    ));
    assert!(matches!(Record::decode(&of(Kind::USE)), Ok(Record::Use(_))));
    assert!(matches!(
        Record::decode(&of(Kind::UNUSE)),
        Ok(Record::Unuse(_))
    ));
    assert!(matches!(
        Record::decode(&of(Kind::SYNC)),
        Ok(Record::Sync(_))
    ));
    assert!(matches!(
        Record::decode(&of(Kind::COMMAND_FAILED)),
        Ok(Record::CommandFailed(_))
    ));
    assert!(matches!(
        Record::decode(&of(Kind(77))),
        Ok(Record::Unknown(_))
    ));
    assert!(matches!(
        Record::decode(&of(Kind(0))),
        Ok(Record::Unknown(_))
    ));
}

#[test]
fn ranges_that_wrap_or_are_empty_are_refused() {
    let wraps = |kind| slots(&MemoryRecord::new(kind, 1, 0, 2, u64::MAX - 10, 512));
    for kind in [Kind::ALLOC, Kind::FREE, Kind::USE, Kind::UNUSE] {
        assert!(matches!(
            Record::decode(&wraps(kind)),
            Err(DecodeError::Range { .. })
        ));
    }
    let empty = |kind| slots(&MemoryRecord::new(kind, 1, 0, 2, 4096, 0));
    assert!(matches!(
        Record::decode(&empty(Kind::ALLOC)),
        Err(DecodeError::Range { .. })
    ));
    assert!(matches!(
        Record::decode(&empty(Kind::USE)),
        Err(DecodeError::Range { .. })
    ));
    assert!(Record::decode(&empty(Kind::FREE)).is_ok());
    let copy = slots(&CopyRecord::copy(0, 0, 1, 0, u64::MAX, 2));
    assert!(matches!(
        Record::decode(&copy),
        Err(DecodeError::Range { .. })
    ));
    let copy = slots(&CopyRecord::copy(0, 0, 1, u64::MAX, 0, 2));
    assert!(matches!(
        Record::decode(&copy),
        Err(DecodeError::Range { .. })
    ));
}

#[test]
fn counts_that_do_not_match_the_slots_are_refused() {
    assert!(matches!(
        Record::decode(&[]),
        Err(DecodeError::Slots { .. })
    ));
    let launch = slots(&Launch::new(SHAPE, &[1; 9]));
    assert_eq!(launch.len(), 2);
    for words in [0_u64, 2, 10, 52, u64::from(u16::MAX)] {
        let mut broken = launch.clone();
        broken[0][4] = broken[0][4] & 0x0000_ffff_ffff_ffff | words << 48;
        assert!(
            Record::decode(&broken).is_err(),
            "{words} words in two slots"
        );
    }
    assert!(Record::decode(&launch[..1]).is_err());
    let function = slots(&Function::new(1, 2, &[b'f'; 60]));
    for bytes in [0_u64, 56, 113, u64::from(u32::MAX)] {
        let mut broken = function.clone();
        broken[0][1] = broken[0][1] & 0xffff_ffff | bytes << 32;
        assert!(
            Record::decode(&broken).is_err(),
            "a name of {bytes} bytes in three slots"
        );
    }
    let mut memory = slots(&MemoryRecord::new(Kind::ALLOC, 1, 0, 2, 0x20_0000, 512));
    memory.push(memory[0]);
    memory[0][0] = memory[0][0] & !0xff_0000 | 2 << 16;
    assert!(matches!(
        Record::decode(&memory),
        Err(DecodeError::Slots { expected: 1, .. })
    ));
}

#[test]
fn a_command_must_name_whole_blocks_and_a_queue_that_exists() {
    let good = CommandRecord {
        operation: Operation(900),
        queue: queue::LOCAL,
        reserved: 0,
        id: 1,
        address: 4 << 20,
        bytes: 2 << 20,
        cause_ns: 0,
        reserved_words: [0; 3],
    };
    let check = |command: CommandRecord| CommandRecord::decode(&command.slot(0)).copied();
    assert_eq!(
        check(good),
        Ok(good),
        "an unknown operation is the executor's to skip"
    );
    assert!(
        check(CommandRecord {
            address: 4096,
            ..good
        })
        .is_err()
    );
    assert!(check(CommandRecord { bytes: 0, ..good }).is_err());
    assert!(
        check(CommandRecord {
            bytes: 4096,
            ..good
        })
        .is_err()
    );
    assert!(
        check(CommandRecord {
            address: !0 << 21,
            bytes: 4 << 20,
            ..good
        })
        .is_err()
    );
    assert!(check(CommandRecord { queue: 4, ..good }).is_err());
}

fn hello() -> Hello {
    Hello {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        device: 0,
        uuid: [9; 16],
        device_bytes: 512 << 20,
        free_bytes: 500 << 20,
        budget_bytes: 0,
        driver_version: 13000,
        flags: Hello::SOFT_DEVICE,
        policy: padded(b"foresight"),
        device_name: padded("Söft GPU".as_bytes()),
        driver_path: padded(b"/usr/lib/\xff/libcuda.so.1"),
    }
}

#[test]
fn a_hello_comes_back_as_it_was_sent() {
    let sent = hello();
    let received = Hello::from_message(sent.as_bytes()).unwrap();
    assert_eq!(received, sent);
    assert_eq!(received.policy(), "foresight");
    assert_eq!(received.device_name(), "Söft GPU");
    assert_eq!(received.driver_path(), b"/usr/lib/\xff/libcuda.so.1");
}

#[test]
fn text_is_cut_to_its_field_and_always_ends() {
    assert_eq!(padded::<4>(b"policy"), *b"pol\0");
    let unterminated = Hello {
        policy: [b'x'; 32],
        ..hello()
    };
    assert_eq!(unterminated.policy(), "x".repeat(32));
}

#[test]
fn another_version_is_told_apart_from_nonsense_whatever_its_length() {
    let other = Hello {
        version: 99,
        ..hello()
    };
    let mut longer = other.as_bytes().to_vec();
    longer.extend([0; 100]);
    for message in [other.as_bytes(), &longer, &longer[..12]] {
        let error = Hello::from_message(message).unwrap_err();
        assert_eq!(error, HandshakeError::Version { theirs: 99 });
        assert_eq!(error.status(), Status::VERSION_MISMATCH);
    }
    for message in [&b""[..], b"oversub\0", b"GET / HTTP/1.1\r\n\r\n"] {
        let error = Hello::from_message(message).unwrap_err();
        assert_eq!(error, HandshakeError::NotOversub);
        assert_eq!(error.status(), Status::MALFORMED);
    }
}

#[test]
fn a_hello_of_another_length_is_refused() {
    let mut message = hello().as_bytes().to_vec();
    message.push(0);
    let error = HandshakeError::Length {
        expected: 416,
        found: 417,
    };
    assert_eq!(Hello::from_message(&message), Err(error));
    let error = HandshakeError::Length {
        expected: 416,
        found: 415,
    };
    assert_eq!(Hello::from_message(&message[..415]), Err(error));
}

#[test]
fn a_welcome_with_impossible_rings_is_refused_unless_it_refuses_itself() {
    let good = Welcome::new(Status::ACCEPTED, 3, 4096, 1024);
    assert_eq!(Welcome::from_message(good.as_bytes()), Ok(good));
    let bad = Welcome::new(Status::ACCEPTED, 3, 1000, 1024);
    let error = HandshakeError::Slots(SlotCountError(1000));
    assert_eq!(Welcome::from_message(bad.as_bytes()), Err(error));
    let refused = Welcome::new(Status::FULL, 0, 0, 0);
    assert_eq!(Welcome::from_message(refused.as_bytes()), Ok(refused));
}

#[test]
fn ring_sizes_are_powers_of_two_within_limits_and_memfds_whole_pages() {
    for good in [8, 1024, MAX_RING_SLOTS] {
        assert_eq!(check_slots(good), Ok(good));
    }
    for bad in [0, 4, 9, 1000, MAX_RING_SLOTS * 2, u32::MAX] {
        assert_eq!(check_slots(bad), Err(SlotCountError(bad)));
        assert!(events_memfd::bytes(bad).is_err());
    }
    assert_eq!(events_memfd::bytes(8), Ok(4 * 4096));
    assert_eq!(events_memfd::bytes(1024), Ok(3 * 4096 + 65536));
    assert_eq!(commands_memfd::bytes(1024), Ok(4096 + 65536));
}

proptest! {
    #[test]
    fn launches_come_back_as_they_were(
        words in prop::collection::vec(any::<u64>(), 0..MAX_LAUNCH_WORDS + 40),
        seq in any::<u64>(), stream in any::<u8>(), flags in any::<u32>(),
        function in any::<u32>(), grid in any::<[u32; 3]>(), block in any::<[u16; 3]>(),
    ) {
        let shape = LaunchShape { stream, flags, seq, function, grid, block };
        let launch = Launch::new(shape, &words);
        let encoded = slots(&launch);
        let kept = &words[..words.len().min(MAX_LAUNCH_WORDS)];
        let expected = Record::Launch { record: launch.record(), words: kept };
        prop_assert_eq!(Record::decode(&encoded), Ok(expected));
    }

    #[test]
    fn names_come_back_as_they_were(name in "\\PC{0,90}", function in any::<u32>()) {
        let record = Function::new(function, 3, name.as_bytes());
        let encoded = slots(&record);
        let cut = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
        let expected = Record::Function { record: record.record(), name: cut };
        prop_assert_eq!(Record::decode(&encoded), Ok(expected));
    }

    #[test]
    fn random_slots_never_panic(
        mut slots in prop::collection::vec(any::<[u64; 7]>(), 0..10),
        kind in 0u64..14, claimed in 0u64..10,
    ) {
        if let Some(first) = slots.first_mut() {
            first[0] = first[0] & !0xff_ffff | claimed << 16 | kind;
        }
        if let Ok(Record::Launch { words, .. }) = Record::decode(&slots) {
            prop_assert!(words.len() <= MAX_LAUNCH_WORDS);
        }
        for slot in &slots {
            let _ = CommandRecord::decode(slot);
        }
    }

    #[test]
    fn random_messages_never_panic(mut message in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Hello::from_message(&message);
        let _ = Welcome::from_message(&message);
        let prefix = [&MAGIC[..], &PROTOCOL_VERSION.to_ne_bytes()].concat();
        message.splice(..message.len().min(12), prefix);
        let _ = Welcome::from_message(&message);
        if let Ok(hello) = Hello::from_message(&message) {
            let _ = (hello.policy(), hello.device_name(), hello.driver_path());
        }
    }

    #[test]
    fn random_hellos_of_the_right_length_are_read(mut bytes in any::<[u8; 32]>()) {
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&PROTOCOL_VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&5_u32.to_ne_bytes());
        let expected = Welcome::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(Welcome::from_message(&bytes), Ok(expected));
    }
}
