//! Lists every public item of the crate, with its signature, and compares the list with `public-items.txt`: a change of the
//! public API shows in a review. `BLESS=1 cargo test -p tollgate-tower --test public_items` writes the list anew.
//!
//! The list is read from the sources, so that it needs no nightly compiler: what a `pub` item says, its fields, variants
//! and methods, and the traits that the sources implement for it. Types of other crates are not followed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, Meta, UseTree, Visibility};

/// All items of the sources by the path of their module, such as `tower::limit`.
type Modules = BTreeMap<String, Vec<Item>>;

#[test]
fn public_items_are_those_of_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut modules = Modules::new();
    read(
        &root.join("src/lib.rs"),
        &root.join("src"),
        "",
        &mut modules,
    );
    let mut lines = Vec::new();
    list("", &modules, &mut lines);
    lines.sort();
    let found = lines.join("\n") + "\n";
    let file = root.join("public-items.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &found).expect("written");
    }
    let listed = std::fs::read_to_string(&file).expect("the list is there");
    let only = |one: &str, other: &str, mark: char| {
        let known: Vec<&str> = other.lines().collect();
        let new = one.lines().filter(|line| !known.contains(line));
        new.fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{mark} {line}");
            text
        })
    };
    let changed = only(&listed, &found, '-') + &only(&found, &listed, '+');
    assert!(
        changed.is_empty() && found == listed,
        "the public API is another one (a line that is gone is a new major version; BLESS=1 accepts it):\n{changed}"
    );
}

/// Reads a module and those in it. `folder`: where files of its own modules are.
fn read(file: &Path, folder: &Path, path: &str, modules: &mut Modules) {
    let text = std::fs::read_to_string(file).expect("a source file");
    let items = syn::parse_file(&text).expect("Rust").items;
    for item in &items {
        let Item::Mod(module) = item else { continue };
        if is_test(&module.attrs) || module.content.is_some() {
            continue;
        }
        let name = module.ident.to_string();
        let inner = folder.join(&name);
        let own: [PathBuf; 2] = [folder.join(format!("{name}.rs")), inner.join("mod.rs")];
        let own = own.iter().find(|file| file.exists()).expect("its file");
        read(own, &inner, &join(path, &name), modules);
    }
    modules.insert(path.to_owned(), items);
}

/// Lists what is public in the public module `path`.
fn list(path: &str, modules: &Modules, lines: &mut Vec<String>) {
    for item in &modules[path] {
        match item {
            Item::Mod(module) if is_public(&module.vis) => {
                let inner = join(path, &module.ident.to_string());
                lines.push(format!("{inner}: {}", gated("pub mod", &module.attrs)));
                list(&inner, modules, lines);
            }
            Item::Use(item) if is_public(&item.vis) => {
                let mut names = Vec::new();
                leaves(&item.tree, &mut Vec::new(), &mut names);
                for (segments, name) in names {
                    let from = module_of(path, &segments);
                    let found = from.as_ref().and_then(|from| modules.get(from));
                    let original = segments.last().expect("a name");
                    let found =
                        found.and_then(|items| items.iter().find(|item| is_called(item, original)));
                    match found {
                        Some(found) => describe(&join(path, &name), found, modules, lines),
                        None => lines.push(format!(
                            "{}: use {}",
                            join(path, &name),
                            segments.join("::")
                        )),
                    }
                }
            }
            Item::Use(_) => {}
            item => {
                if let Some(name) = public_name(item) {
                    describe(&join(path, &name), item, modules, lines);
                }
            }
        }
    }
}

/// Lists an item, its parts, and what is implemented for it.
fn describe(path: &str, item: &Item, modules: &Modules, lines: &mut Vec<String>) {
    let mut line = |text: &str, attributes: &[Attribute]| {
        lines.push(format!("{path}: {}", gated(text, attributes)))
    };
    match item {
        Item::Fn(item) => line(&text(&item.sig), &item.attrs),
        Item::Const(item) => line(&format!("const {}", text(&item.ty)), &item.attrs),
        Item::Type(item) => line(
            &format!("type {} = {}", text(&item.generics), text(&item.ty)),
            &item.attrs,
        ),
        Item::Trait(item) => {
            line(
                &format!(
                    "trait {} : {}",
                    text(&item.generics),
                    text(&item.supertraits)
                ),
                &item.attrs,
            );
            for part in &item.items {
                let mut part = part.clone();
                if let syn::TraitItem::Fn(method) = &mut part {
                    (method.attrs, method.default) = (Vec::new(), None);
                }
                line(&text(&part), &[]);
            }
        }
        Item::Struct(item) => {
            line(&format!("struct {}", text(&item.generics)), &item.attrs);
            fields(path, &item.fields, true, lines);
        }
        Item::Enum(item) => {
            line(&format!("enum {}", text(&item.generics)), &item.attrs);
            for variant in &item.variants {
                let path = join(path, &variant.ident.to_string());
                lines.push(format!("{path}: {}", gated("variant", &variant.attrs)));
                fields(&path, &variant.fields, false, lines);
            }
        }
        // Such as those of `pin_project!`: as they are written.
        item => line(&text(item), &[]),
    }
    let name = path.rsplit("::").next().expect("a name");
    for item in modules.values().flatten() {
        let Item::Impl(block) = item else { continue };
        let of = text(&block.self_ty);
        if of.split([' ', '<']).next() != Some(name) {
            continue;
        }
        let head = format!("impl{} {of}", text(&block.generics));
        if let Some((_, of_trait, _)) = &block.trait_ {
            lines.push(format!(
                "{path}: impl{} {} for {of}",
                text(&block.generics),
                text(of_trait)
            ));
            continue;
        }
        for part in &block.items {
            match part {
                ImplItem::Fn(method) if is_public(&method.vis) => {
                    lines.push(format!(
                        "{path}: {}",
                        gated(&format!("{head} {}", text(&method.sig)), &method.attrs)
                    ));
                }
                ImplItem::Const(constant) if is_public(&constant.vis) => {
                    lines.push(format!(
                        "{path}: {head} const {}: {}",
                        constant.ident,
                        text(&constant.ty)
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Lists fields: of a struct the public ones, of a variant all.
fn fields(path: &str, fields: &Fields, of_struct: bool, lines: &mut Vec<String>) {
    for (place, field) in fields.iter().enumerate() {
        if is_public(&field.vis) || !of_struct {
            let name = field
                .ident
                .as_ref()
                .map_or_else(|| place.to_string(), ToString::to_string);
            lines.push(format!("{path}: .{name}: {}", text(&field.ty)));
        }
    }
    let hidden = fields.iter().any(|field| !is_public(&field.vis));
    if of_struct && !hidden && !fields.is_empty() {
        lines.push(format!("{path}: all fields are public"));
    }
}

/// The paths of a `use`, each with the name under which it is known.
fn leaves(tree: &UseTree, before: &mut Vec<String>, into: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, into);
            before.pop();
        }
        UseTree::Name(name) => into.push((
            [&before[..], &[name.ident.to_string()]].concat(),
            name.ident.to_string(),
        )),
        UseTree::Rename(name) => into.push((
            [&before[..], &[name.ident.to_string()]].concat(),
            name.rename.to_string(),
        )),
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| leaves(tree, before, into)),
        UseTree::Glob(_) => panic!("a glob of public items cannot be listed"),
    }
}

/// The module that a path within module `path` names; `None`: of another crate.
fn module_of(path: &str, segments: &[String]) -> Option<String> {
    let (_, module) = segments.split_last()?;
    match module.first().map(String::as_str) {
        Some("crate") => Some(module[1..].join("::")),
        Some("super" | "self") => panic!("write the path from `crate`"),
        _ => Some(join(path, &module.join("::"))),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}::{name}")
    }
}

fn public_name(item: &Item) -> Option<String> {
    let (vis, ident) = match item {
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(vis).then(|| ident.to_string())
}

/// Whether an item has this name; a macro is searched for a declaration of it.
fn is_called(item: &Item, name: &str) -> bool {
    match item {
        Item::Macro(item) => item
            .mac
            .tokens
            .to_string()
            .contains(&format!("pub struct {name}")),
        item => public_name(item).is_some_and(|known| known == name),
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| text(one).contains("cfg(test)"))
}

/// The text with the attributes that an application notices.
fn gated(signature: &str, attributes: &[Attribute]) -> String {
    let noticed = ["cfg", "derive", "must_use", "non_exhaustive", "deprecated"];
    let noticed = attributes.iter().filter(|one| {
        let path = match &one.meta {
            Meta::Path(path) => path,
            Meta::List(list) => &list.path,
            Meta::NameValue(pair) => &pair.path,
        };
        noticed.iter().any(|name| path.is_ident(name))
    });
    let mut line = noticed.fold(String::new(), |line, one| line + &text(one) + " ");
    line.push_str(signature.trim());
    line
}

/// The tokens, spaced as they are usually written.
fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    for (spaced, usual) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("- >", "->"),
        ("& ", "&"),
        (" ,", ","),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :", ":"),
        (" ;", ";"),
        ("# [", "#["),
        (" [", "["),
        ("[ ", "["),
        (" ]", "]"),
        (" ?", "?"),
    ] {
        text = text.replace(spaced, usual);
    }
    text
}
