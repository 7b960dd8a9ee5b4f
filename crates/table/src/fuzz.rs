//! Fuzz targets: plain functions over bytes, one per decoder. The tests replay them over the
//! corpus in `tests/corpus/`; a coverage-guided run calls the same.
//!
//! Beside "no panic", each checks that accepted bytes are written back as they were read, so that
//! no two programs can read one file differently.

use crate::format::block::{Block, BlockBuilder};
use crate::format::edit::{put_change, read_changes};
use crate::format::footer::{FOOTER, Footer};
use crate::format::frame::{Content, FILE_HEAD, Form, Next, next_record, put_record, read_head};
use crate::format::ops::{put_op, read_ops};
use crate::layout::Layout;
use crate::limits::BATCH_BYTES_MAX;
use crate::manifest;
use crate::options::Compression;
use crate::types::{FileNo, Name, Seq};

/// The file of all fuzzed bytes.
const FILE: FileNo = FileNo::new(3, 7);

/// The heads of all kinds of files.
pub fn fuzz_file_head(bytes: &[u8]) {
    for content in [Content::Log, Content::Manifest, Content::Sorted] {
        if let Ok(head) = read_head(content, bytes) {
            assert_eq!(head.encode(content)[..], bytes[..FILE_HEAD]);
        }
    }
}

/// Records of a log, and the operations in them.
pub fn fuzz_log(bytes: &[u8]) {
    fuzz_records(Form::Plain, bytes);
}

/// The same of a log that may hold data.
pub fn fuzz_data_log(bytes: &[u8]) {
    fuzz_records(Form::WithData, bytes);
}

fn fuzz_records(form: Form, bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Next::Record(record)) = next_record(form, FILE, rest, BATCH_BYTES_MAX) {
        let mut back = Vec::new();
        put_record(&mut back, form, FILE, &record);
        assert_eq!(back, rest[..back.len()]);
        fuzz_ops(record.body);
        rest = rest.get(record.len(form) as usize..).unwrap_or_default();
    }
}

/// Operations of a batch.
pub fn fuzz_ops(bytes: &[u8]) {
    for count in 0..4 {
        if let Ok(ops) = read_ops(bytes, count) {
            let mut back = Vec::new();
            ops.iter().for_each(|op| put_op(&mut back, *op));
            assert_eq!(back, bytes);
        }
    }
}

/// A whole manifest, decoded as number 3.
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Ok(layout) = manifest::decode(3, bytes) {
        assert!(layout.generation != 0);
        assert!(layout.runs.windows(2).all(|pair| pair[0].first > pair[1].last));
        // What it would write is read as the same table.
        let mut again = Layout { owner: layout.owner, form: layout.form, ..Layout::default() };
        for change in layout.snapshot() {
            again.apply(change).expect("its own changes");
        }
        assert_eq!(again.snapshot(), layout.snapshot());
        assert_eq!(again.is_bounded(), layout.is_bounded());
    }
}

/// Changes of an edit.
pub fn fuzz_changes(bytes: &[u8]) {
    for count in 0..8 {
        if let Ok(changes) = read_changes(bytes, count) {
            let mut back = Vec::new();
            changes.iter().for_each(|change| put_change(&mut back, change));
            assert_eq!(back, bytes);
        }
    }
}

/// A block as in a file, at offset 32.
pub fn fuzz_block(bytes: &[u8]) {
    if let Ok(block) = Block::decode(FILE, 32, bytes) {
        use_block(&block);
    }
}

/// A block's content.
pub fn fuzz_block_content(bytes: &[u8]) {
    if let Ok(block) = Block::parse(bytes.to_vec()) {
        use_block(&block);
        let mut builder = BlockBuilder::default();
        for index in 0..block.len() {
            builder.add(&block.key(index), block.versions(index));
        }
        let mut out = Vec::new();
        builder.finish(FILE, 32, Compression::None, &mut out);
        assert_eq!(&out[crate::format::block::BLOCK_HEAD..], bytes);
    }
}

fn use_block(block: &Block) {
    for index in 0..block.len() {
        let key = block.key(index);
        assert_eq!(block.find(&key), Some(index));
        assert_eq!(block.visible(index, Seq::new(u64::MAX)), block.versions(index).next());
    }
}

/// A sorted file's footer, at offset 4096.
pub fn fuzz_footer(bytes: &[u8]) {
    if let Ok(footer) = Footer::decode(FILE, 4096, bytes) {
        assert_eq!(footer.encode(FILE, 4096)[..], bytes[..FOOTER]);
    }
}

/// Names of files.
pub fn fuzz_name(bytes: &[u8]) {
    if let Some(text) = std::str::from_utf8(bytes).ok()
        && let Some(name) = Name::parse(text)
    {
        assert_eq!(name.to_string(), text);
    }
}
