//! Renders problems in the style of rustc. The only module that uses the rendering crate.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::reading::{Mark, Problem, Severity, Sources};
use tollgate_limit::printable::{printable, printable_lines};

/// Renders `problems`, one paragraph each; in colour for a terminal, otherwise plain.
pub(crate) fn render(problems: &[Problem], sources: &Sources, colour: bool) -> String {
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer.term_width(WIDTH);
    let drawn: Vec<String> = problems
        .iter()
        .map(|problem| renderer.render(&[group(problem, sources)]))
        .collect();
    drawn.join("\n\n")
}

fn group<'p>(problem: &'p Problem, sources: &'p Sources) -> Group<'p> {
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = level
        .primary_title(printable_lines(&problem.title))
        .elements(snippets(problem, sources));
    for note in &problem.notes {
        group = group.element(Level::NOTE.message(printable_lines(note)));
    }
    for help in &problem.helps {
        group = group.element(Level::HELP.message(printable_lines(help)));
    }
    group
}

/// One snippet per file, the mistake's own file first.
fn snippets<'p>(
    problem: &'p Problem,
    sources: &'p Sources,
) -> Vec<Snippet<'p, annotate_snippets::Annotation<'p>>> {
    let mut files: Vec<u32> = Vec::new();
    for mark in &problem.marks {
        if !files.contains(&mark.place.file) {
            files.push(mark.place.file);
        }
    }
    files
        .into_iter()
        .map(|file| {
            let source = sources.of(file);
            let marks = problem
                .marks
                .iter()
                .enumerate()
                .filter(|(_, mark)| mark.place.file == file);
            Snippet::source(source.text.as_str())
                .path(printable(&source.name))
                .annotations(marks.map(|(at, mark)| annotation(mark, at == 0, source.text.len())))
        })
        .collect()
}

fn annotation(mark: &Mark, primary: bool, length: usize) -> annotate_snippets::Annotation<'_> {
    let kind = if primary {
        AnnotationKind::Primary
    } else {
        AnnotationKind::Context
    };
    let range = mark.place.range();
    let annotation = kind.span(range.start.min(length)..range.end.min(length));
    if mark.label.is_empty() {
        annotation
    } else {
        annotation.label(printable_lines(&mark.label))
    }
}

/// Wide enough that lines of a configuration file are not cut.
const WIDTH: usize = 160;
