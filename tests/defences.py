"""Defences of the threat model, and how each is removed: `python -m tests.mutants --security`.

A row is one sentence of docs/threat-model.md, the text of the product that keeps it, and the test
that attacks it. The texts stand once in the product, wherever they are.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "clients", "strategies", "datasets", "coterie")


class Defence(NamedTuple):
    """A text of the product without which a test fails."""

    claim: str
    """Words of the sentence in docs/threat-model.md: what nobody can do."""
    old: str
    new: str
    test: str

    @property
    def file(self) -> Path:
        """File with the text; AssertionError if there is none, or another one."""
        files = [file for file, text in product().items() if self.old in text]
        assert len(files) == 1, f"{self.old!r}: in {files}"
        assert product()[files[0]].count(self.old) == 1, f"{self.old!r}: more than once"
        return files[0]

    @property
    def node_id(self) -> str:
        """The test for pytest."""
        (file,) = (f for f in (ROOT / "tests").rglob("test_*.py") if self._in(f))
        return f"{file.relative_to(ROOT)}::{self.test}"

    def _in(self, file: Path) -> bool:
        return re.search(rf"^def {self.test}\(", file.read_text("utf-8"), re.M) is not None

    def row(self) -> str:
        """Row of the table in Markdown."""
        removed = " ".join(self.old.split()).replace("|", "\\|")
        return f"| {self.claim} | `{removed}` | `{self.test}` |"


HEAD = "| what nobody can do | removed | test |\n|---|---|---|\n"


@cache
def product() -> dict[Path, str]:
    """Return the files of the product with their texts."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return {file: file.read_text("utf-8") for file in sorted(files)}


DEFENCES = [Defence(*row) for row in (
    # --- an outsider
    ("make a deployed node behave as a simulated one",
     "        in_simulation(),\n", '        "partition-id" in context.node_config,\n',
     "test_typing_what_a_simulation_has_makes_no_simulated_node"),
    ("make a node take part without a policy",
     'if "policy" not in node_config:',
     'if "policy" not in node_config:\n        return Policy(approval="none")\n    if False:',
     "test_a_node_without_a_policy_takes_part_in_nothing"),
    ("run another method, other data",
     '_listed("methods", policy.methods, "method", [config.method])', "pass",
     "test_a_run_outside_the_policy_is_refused_before_data_are_read"),
    ("run without differential privacy",
     "    _private_enough(policy.privacy, config.privacy)", "    pass",
     "test_a_run_that_is_not_private_enough_is_refused_before_data_are_read"),
    ("round the noise away",
     "low=1e-06,", "low=0,", "test_a_clip_whose_noise_would_be_rounded_to_zero_is_refused"),
    ("weaken the clipping",
     "norms: Tensor = torch.linalg.vector_norm(self.left, dim=2, dtype=torch.float64)",
     "norms: Tensor = torch.linalg.vector_norm(self.left, dim=2)",
     "test_no_gradient_is_longer_than_the_clip_whatever_size_its_factors_have"),
    ("disable the noise",
     "if self.noise != 0 and not MIN_NOISE <= self.noise <= MAX_NOISE:", "if False:",
     "test_noise_too_small_to_account_for_is_refused"),
    ("disable the noise",
     "np.where(rdp >= 0, rdp, np.inf)", "np.where(rdp >= 0, rdp, rdp)",
     "test_epsilon_of_what_is_no_divergence_is_infinite"),
    ("spend epsilon without charge",
     "            self._journal.add(line)\n            self._spent", "            self._spent",
     "test_runs_side_by_side_share_one_budget"),
    ("learn from a non-finite gradient",
     "return torch.where(sound, clip / norms.clamp_min(clip), 0.0)",
     "return clip / norms.clamp_min(clip)",
     "test_an_example_whose_gradient_is_not_finite_adds_nothing"),
    ("run a configuration that was not approved",
     "if len(used) < approved:", "if True:",
     "test_a_run_waits_for_a_person_and_an_approval_is_for_one_run"),
    ("show a person one configuration",
     "approval.approve(out, digest)", "approval.approve(out, approval.newest_config(directory)[1])",
     "test_what_arrives_while_a_person_reads_is_not_approved"),
    ("show a person one configuration",
     "super().render_str(printable(text), **how)", "super().render_str(text, **how)",
     "test_what_a_person_reads_is_spelt_out"),
    ("make a node open a file that a key of the run names",
     'if option.is_path or option.scope == "site"', 'if option.scope == "site"',
     "test_no_path_of_a_run_is_one_of_a_deployed_node"),
    ("make a node contact a host", "if not _may_download.get():", "if False:",
     "test_a_deployed_node_downloads_nothing"),
    ("exhaust a node's memory or time",
     "    _check_sizes(policy.limits, config)", "    pass",
     "test_a_run_that_takes_too_much_is_refused_before_data_are_read"),
    ("inject text into a command",
     "return _NAME.fullmatch(text) is not None", "return True",
     "test_what_is_no_name_is_refused_wherever_it_enters"),
    ("send requests that the run's strategy does not make",
     "    check_request(request, strategy, peers)\n", "",
     "test_an_order_that_the_strategy_does_not_allow_is_refused"),
    ("send requests that the run's strategy does not make",
     'raise RequestError("edges that this node did not want")', "pass",
     "test_a_letter_that_a_node_did_not_want_is_not_heard"),
    ("learn a count, a name, a value",
     'encode_fault(f"{_who(job)}{faults.line_of(error)}")', 'encode_fault(f"{_who(job)}{line}")',
     "test_faults_do_not_answer_questions_about_the_data"),
    ("compute a cell of a table from one loss",
     "is_far_c = np.maximum(own_c, np.abs(mean_c - common_c)) > _FAR * scale_c",
     "is_far_c = np.zeros(len(columns), dtype=np.bool_)",
     "test_a_scale_on_which_single_cells_stand_out_is_refused"),
    ("compute a cell of a table from one loss",
     "if size < minimum and (size or part", "if False and (size or part",
     "test_a_run_cannot_make_a_loss_out_of_one_cell"),
    ("learn from the statistics for a common scale",
     'result[:, c] = nearest["statistics"]', "result[:, c] = sent_3c[:, c]",
     "test_two_runs_and_one_patient_more_tell_nothing_about_the_patient"),
    ("learn from the statistics for a common scale",
     "return values if 1 + differing >= max(min_values, 2) else values[:0]", "return values",
     "test_few_values_and_one_value_stay"),
    ("give peers different scales",
     "if not np.allclose(scale_2c, self._scale_2c, rtol=1e-9, atol=0, equal_nan=True):",
     "if False:", "test_all_nodes_keep_one_scale_when_a_table_changes"),
    ("make all inputs of other institutions extreme",
     "if not (is_sound & (count_c <= most) & (variance_c <= _LARGEST)).all():", "if False:",
     "test_a_run_without_all_statistics_does_not_begin"),
    ("learn the value of one patient from a drafted",
     "near = publishable(values, min_rows, unit_n[is_known])", "near = values",
     "test_a_draft_holds_no_value_of_a_single_patient"),
    ("learn from a sensitivity",
     "self._rarest = rarest if rarest >= policy.data.min_examples else 0", "self._rarest = rarest",
     "test_a_class_of_few_is_not_measured_by_itself"),
    ("learn a loss or an accuracy of the training examples",
     'if not sizes[part] or (part == "train" and not training):', "if not sizes[part]:",
     "test_numbers_about_own_data_are_rounded_and_training_stays_at_home"),
    ("solve for the labels of single rows",
     "if self._numbers + numbers > budget and new:", "if False:",
     "test_all_runs_have_one_budget_of_numbers"),
    ("read single examples out of a gradient",
     "        _answers_allowed(policy, config)\n", "",
     "test_without_a_person_who_says_plain_answers_are_private"),
    ("ask for gradients over few examples",
     '_batches_of("answers.min-examples", policy.answers.min_examples, config)', "pass",
     "test_answers_are_over_a_minimum_number_of_examples"),
    ("read a patient with a rare category",
     "np.where(differ_m < self.min_rows, 0.0, inputs_rm)", "inputs_rm",
     "test_a_rare_category_would_give_its_patient_away"),
    ("read a patient with a rare category",
     "units(column_n != values[times.argmax()], groups_n)",
     "int((column_n != values[times.argmax()]).sum())",
     "test_rare_columns_count_patients"),
    ("read a patient with a rare category",
     '("answers.min-examples", answers.min_examples, "min-rows"),', "",
     "test_a_policy_requires_the_minimum"),
    ("move others' models with a letter that says",
     "if not (np.abs(sent_l) < _LARGEST).all() or unit <= 0:", "if unit <= 0:",
     "test_a_letter_that_no_rows_give_is_left_out"),
    ("have trees trained whose leaves",
     "        _check_described(policy.answers, config)\n", "",
     "test_the_policy_counts_leaves_and_steps"),
    ("have trees trained whose leaves", "leaf < behind * rows", "leaf < behind",
     "test_leaves_count_patients"),
    ("have trees trained whose leaves",
     '_listed("models", policy.models, "model", list(config.kinds))', "pass",
     "test_the_policy_lists_models"),
    ("have a letter leave that tells more",
     'return entry["verdict"] not in STOPPED', "return True",
     "test_only_the_memorising_tree_is_held"),
    ("have a letter leave that tells more",
     "            self._measured.pop(ends, None)",
     '            self._measured[ends] = entry["round"]',
     "test_after_a_letter_that_did_not_leave_all_are_measured"),
    ("have a letter leave that tells more",
     'if is_between and letter.kind != "answer":', "if is_between:",
     "test_answers_and_statistics_pass_the_same_gate"),
    ("have a letter leave that tells more",
     "keys.verifier.verify(signature, _signed(sheet))", "pass",
     "test_a_changed_byte_breaks_the_signature"),
    ("ask for more gradients than allowed", "if answered + more > most:", "if False:",
     "test_answers_are_budgeted"),
    ("learn more from a preflight",
     'result if check.disclosed and not hidden else "ok"', "result",
     "test_a_relay_that_asks_who_is_ready_gets_bands_and_codes"),
    ("have a round repeated with other letters",
     "if len(before) > self._limits.max_replays:", "if False:",
     "test_a_round_asked_again_with_other_letters_is_on_the_ledger_and_limited"),
    # --- files of an institution
    ("A node refuses key, trust and policy files",
     "            raise PolicyError(how)", "            pass",
     "test_a_policy_that_others_may_write_to_is_none"),
    ("A node refuses key, trust and policy files", "about.st_uid not in (0, os.geteuid())", "False",
     "test_who_owns_a_file_a_folder_or_a_link_could_change_it"),
    ("Sealing cannot be switched off from outside", "if keys and plain:", "if False:",
     "test_the_run_cannot_make_a_node_that_seals_send_plain_letters"),
    ("node's own user can read them", "    with closed():\n        return _handle(record, job)",
     "    return _handle(record, job)", "test_what_a_node_writes_is_open_to_its_own_user_only"),
    # --- a dishonest relay
    ("alter, truncate, extend or replace",
     "sender.verifier.verify(signature, header + wrapped)", "pass",
     "test_one_changed_bit_anywhere_is_noticed"),
    ("deliver a letter under another round", "        letter.round,\n        letter.sender,",
     "        letter.sender,", "test_a_letter_opens_only_as_what_it_was_sealed"),
    ("tell two nodes different configurations",
     "        scope.config_digest,\n        scope.attempt,\n        letter.kind,",
     "        scope.attempt,\n        letter.kind,",
     "test_letters_of_two_runs_or_configurations_do_not_mix"),
    ("deliver a letter twice", "if ends in result:", "if False:",
     "test_a_letter_that_comes_twice_is_opened_once"),
    ("repeat a committed round", "if first <= memory.committed:", "if False:",
     "test_what_the_relay_called_over_does_not_come_back"),
    ("add itself or an accomplice",
     'raise SealError("is from a peer that is not in the trust file")', "return letter.payload",
     "test_who_is_not_in_the_trust_file_is_neither_written_to_nor_listened_to"),
    ("report false numbers of examples",
     "maximum = _TIMES_MEDIAN * there[(len(there) - 1) // 2]", "pass",
     "test_the_usual_bound_is_ten_times_the_median_of_those_who_are_there"),
    ("send malformed requests or letters", "if received != dict(layout):", "if False:",
     "test_a_mutated_letter_is_refused_or_still_has_the_layout"),
    ("send a request that the run's strategy does not make",
     "    check_request(request, strategy, peers)\n", "",
     "test_forged_orders"),
    ("ask for whole letters in place of increments", "return sent < 1 + t // 10", "return True",
     "test_nobody_makes_all_letters_whole"),
    # --- a dishonest peer
    ("send letters in another peer's name", 'raise SealError("is not sealed")',
     "return letter.payload",
     "test_plain_letters_are_refused_by_a_node_that_seals_and_the_reverse"),
    ("crash a node with a letter",
     'except Exception as error:\n        raise PayloadError(f"cannot be decoded',
     'except ZeroDivisionError as error:\n        raise PayloadError(f"cannot be decoded',
     "test_whatever_error_a_decoder_raises_refuses_that_letter_and_no_more"),
    ("send a few megabytes that become gigabytes",
     'raise WireError("an array that names a chunk twice, or what is not a chunk")', "return",
     "test_a_letter_is_its_chunks_each_once"),
    ("corrupt models with non-finite numbers",
     "state = restored(part.state, state, bad_p)", "pass",
     "test_it_keeps_its_model_and_is_counted"),
    ("end the run, or change another peer's numbers",
     "if hosted and response.peers != tuple(hosted):", "if False:",
     "test_forged_replies_cost_nobody_else_anything"),
    ("report for others, twice", "metrics.keys() <= strategy.metrics\n", "True\n",
     "test_what_does_not_belong_is_dropped_and_noted"),
    ("request edges for others",
     "valid_w &= False if end is None else np.isin(wants[:, end], response.peers)", "pass",
     "test_nobody_wants_for_others"),
    ("take the place of a peer whose node takes part",
     "taken = [peer for peer in peers if self.owners.get(peer, node) != node]", "taken = []",
     "test_a_peer_with_two_nodes"),
    ("take the place of a peer whose node has not connected yet",
     "if not self._proves(peer, claim, attempt):", "if False:",
     "test_an_impostor_that_comes_first_is_refused"),
    ("choose its own weight in an average",
     "if not all(0 < samples <= MAX_SAMPLES for samples in response.samples):", "if False:",
     "test_nobody_has_more_samples_than_a_hospital_can"),
    ("outweigh all others by the size",
     "large_e[mine] = size_e[mine] > limit(known, _MODELS if is_offer else _ANSWERS)", "pass",
     "test_one_of_six_is_refused_by_all_others"),
    ("decide the predictions for patients",
     "return torch.where(self.are_inside(outputs, low, high), outputs, nearest)", "return outputs",
     "test_a_leaf_that_no_row_tested_decides_nothing"),
    ("fill the relay's log or terminal",
     'return "".join(char if char.isprintable() else "?" for char in line)', "return line",
     "test_what_a_failing_node_says_is_one_short_harmless_line"),
    # --- simulations
    ("send code to a run or comparison",
     '"RAY_AUTH_MODE": "token",', '"RAY_AUTH_MODE": "disabled",',
     "test_no_port_takes_code_or_orders"),
    # --- damaged state
    ("a byte of a peer's state", "if content[-_DIGEST:] != _digest(body, bound):", "if False:",
     "test_a_node_refuses_what_is_not_what_it_wrote"),
    ("the record of completed rounds", "if self.committed < at_least:", "if False:",
     "test_a_memory_that_was_changed_plays_no_round_again"),
    ("the record of completed rounds", "if digest != _digest(path, record):", "if False:",
     "test_that_of_another_run_or_peer_is_refused"),
    ("a ledger in `institution/` changed",
     "if mark.size > end or hashed.hexdigest() != mark.digest:", "if False:",
     "test_a_privacy_ledger_that_was_changed_lets_nobody_spend"),
    ("the last line of a ledger", 'return content[: content.rfind(b"\\n") + 1]', "return content",
     "test_a_kill_while_writing_leaves_whole_lines"),
    ("two processes use one peer's state at once",
     "with atomic.locked(lock, wait=False):", "if True:",
     "test_two_processes_never_work_on_one_state"),
    ("the common scale of a run", "if not is_whole:", "if False:",
     "test_a_damaged_scale_stops_the_node"),
    # --- files from others
    ("name a program, a module or a folder", "if name not in named:", "if False:",
     "test_resume_loads_what_the_user_names"),
    ("name a program, a module or a folder",
     'if parts.code_named({"model": kind}) and kind not in named.parts:', "if False:",
     "test_code_is_loaded_where_the_user_names_it_in_the_same_words"),
    ("make the reader open a file",
     "adaptation = replace(adaptation, weights=named.weights_like(adaptation.weights))", "pass",
     "test_weights_that_a_network_starts_from_are_named"),
    ("exhaust memory or time: a billion peers", "if self._left < 0:", "if False:",
     "test_what_would_take_terabytes_takes_nothing"),
    ("write a file elsewhere",
     'draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")', "draft = path",
     "test_nothing_is_written_through_a_hard_link"),
    ("clear the terminal, reverse text",
     "if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):",
     "if False:", "test_a_cell_that_a_spreadsheet_would_compute_is_text"),
    ("shadow a library with a file", "    del sys.path[0]", "    pass",
     "test_modules_in_the_working_directory_are_not_ours"),
)]  # fmt: skip
