# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS' pseudo-code (supplement, Algorithms 2-45), line by line in plain Python: what the benchmark compares with.

Not for use. Mended is only what cannot run: `RANDOM_SAMPLE(range(num_layers), num_layers)` samples k of k layers and is
read as k of all layers; `RANDOM_CHOICES` of layers draws without repeats; client numbers end at num_clients - 1.
Everything else stays as printed: Algorithm 6 fills the first front alone, Algorithm 8 sorts the population again for
every parent, Algorithm 25 prefers what is worse, objectives are computed again wherever they are needed. A solution is
a list of lists: the layers of each client.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Solution = list[list[int]]


class Transcription:
    """Scores, budgets and random numbers that the algorithms share, and a count of the solutions they look at."""

    def __init__(self, scores: list[list[float]], budgets: list[int], seed: int) -> None:
        self.scores, self.budgets = scores, budgets
        self.clients, self.layers = len(scores), len(scores[0])
        self.random = random.Random(seed)
        self.solutions = 0

    # Algorithms 4, 15, 23, 29, 42
    def diversity(self, solution: Solution) -> float:
        counts = [0] * self.layers
        for client_layers in solution:
            for layer in client_layers:
                counts[layer] = counts[layer] + 1
        mean = sum(counts) / len(counts)
        variance = sum((count - mean) ** 2 for count in counts) / len(counts)
        return math.sqrt(variance)

    # Algorithms 5, 16, 24, 30, 43
    def importance(self, solution: Solution) -> float:
        importance = 0.0
        for client_idx, client_layers in enumerate(solution):
            for layer in client_layers:
                importance = importance + self.scores[client_idx][layer]
        return importance

    # Algorithms 7, 18, 22, 32, 40
    def dominates(self, first: Solution, second: Solution) -> bool:
        imp1, div1 = self.importance(first), self.diversity(first)
        imp2, div2 = self.importance(second), self.diversity(second)
        return (imp1 >= imp2 and div1 <= div2) and (imp1 > imp2 or div1 < div2)

    # Algorithms 26, 33, 44
    def update_pareto_archive(self, archive: list[Solution], new: Solution) -> list[Solution]:
        non_dominated = [s for s in archive if not self.dominates(new, s)]
        if not any(self.dominates(s, new) for s in archive):
            non_dominated.append(new)
        return non_dominated

    # Algorithms 13, 20, 36
    def random_solution(self) -> Solution:
        self.solutions += 1
        return [self.random.sample(range(self.layers), budget) for budget in self.budgets]

    # Algorithms 34, 45
    def pick_best_solution(self, archive: list[Solution]) -> Solution:
        return max(archive, key=lambda s: self.importance(s) - self.diversity(s))

    def without_repeats(self, weights: list[float], k: int) -> list[int]:
        left, chosen = list(range(len(weights))), []
        for _ in range(k):
            layer = self.random.choices(left, weights=[weights[i] for i in left])[0]
            left.remove(layer)
            chosen.append(layer)
        return chosen


def nsga(t: Transcription, population_size: int = 50, generations: int = 20, mutation: float = 0.5) -> list[Solution]:
    """Algorithms 2-11; returns the last population, of which Algorithm 2 returns the most balanced solution."""

    def initialize() -> list[Solution]:  # Algorithm 3
        population = []
        for _ in range(population_size):
            t.solutions += 1
            individual = []
            for client_idx in range(t.clients):
                scores = t.scores[client_idx]
                probabilities = [score / sum(scores) for score in scores]
                individual.append(t.without_repeats(probabilities, t.budgets[client_idx]))
            population.append(individual)
        return population

    def non_dominated_sort(population: list[Solution]) -> list[list[int]]:  # Algorithm 6
        fronts: list[list[int]] = [[]]
        dominated: dict[int, list[int]] = {i: [] for i in range(len(population))}
        for i, first in enumerate(population):
            dominance_count = 0
            for j, second in enumerate(population):
                if t.dominates(first, second):
                    dominated[i].append(j)
                elif t.dominates(second, first):
                    dominance_count = dominance_count + 1
            if dominance_count == 0:
                fronts[0].append(i)
        return fronts

    def crowding_distance(front: list[Solution]) -> list[float]:  # Algorithm 9
        distances = [0.0 for _ in front]
        for objective in (t.importance, t.diversity):
            front = sorted(front, key=objective)
            distances[0] = distances[-1] = math.inf
            for i in range(1, len(front) - 1):
                distances[i] = distances[i] + (objective(front[i + 1]) - objective(front[i - 1]))
        return distances

    def select(population: list[Solution]) -> Solution:  # Algorithm 8
        selected_front = non_dominated_sort(population)[0]
        distances = crowding_distance([population[i] for i in selected_front])
        distances = [d if math.isfinite(d) else 1e-6 for d in distances]
        probabilities = [(d + 1e-6) / sum(distances) for d in distances]
        return population[t.random.choices(selected_front, weights=probabilities, k=1)[0]]

    def crossover(parent1: Solution, parent2: Solution) -> tuple[Solution, Solution]:  # Algorithm 10
        child1, child2 = [], []
        for client_idx in range(t.clients):
            combined = sorted(set(parent1[client_idx]) | set(parent2[client_idx]))
            child1.append(t.random.sample(combined, t.budgets[client_idx]))
            child2.append(t.random.sample(combined, t.budgets[client_idx]))
        t.solutions += 2
        return child1, child2

    def mutate(individual: Solution) -> Solution:  # Algorithm 11
        if t.random.random() < mutation:
            client_idx = t.random.randrange(t.clients)
            individual[client_idx] = t.random.sample(range(t.layers), t.budgets[client_idx])
        return individual

    population = initialize()
    for _ in range(generations):  # Algorithm 2
        fronts = non_dominated_sort(population)
        new_population: list[Solution] = []
        for front in fronts:
            if len(new_population) + len(front) <= population_size:
                new_population += [population[i] for i in front]
            else:
                new_population += [population[i] for i in front[: population_size - len(new_population)]]
                break
        while len(new_population) < population_size:
            parent1 = select(population)
            parent2 = select(population)
            child1, child2 = crossover(parent1, parent2)
            new_population.append(mutate(child1))
            if len(new_population) < population_size:
                new_population.append(mutate(child2))
        population = new_population
        best = min(population, key=t.diversity)
        t.importance(best), t.diversity(best)
    return population


def mopso(
    t: Transcription,
    population_size: int = 50,
    iterations: int = 20,
    inertia: float = 0.5,
    cognitive: float = 1.5,
    social: float = 1.5,
) -> list[Solution]:
    """Algorithms 12-18."""

    def non_dominated(population: list[Solution]) -> list[Solution]:  # Algorithm 17
        archive = []
        for individual in population:
            is_dominated = False
            for other in population:
                if t.dominates(other, individual):
                    is_dominated = True
                    break
            if not is_dominated:
                archive.append(individual)
        return archive

    def update(
        particle: Solution, velocity: list[list[float]], personal: Solution, best: Solution
    ) -> tuple[Solution, list[list[float]]]:  # Algorithm 14
        new_velocity, new_particle = [], []
        for client_idx in range(t.clients):
            position = particle[client_idx]
            client_velocity, client_position = [], []
            for i in range(len(position)):
                r1, r2 = t.random.random(), t.random.random()
                own = cognitive * r1 * (personal[client_idx][i] - position[i])
                common = social * r2 * (best[client_idx][i] - position[i])
                v_new = inertia * velocity[client_idx][i] + own + common
                client_velocity.append(v_new)
                client_position.append(min(max(round(position[i] + v_new), 0), t.layers - 1))
            client_position = list(dict.fromkeys(client_position))
            while len(client_position) < t.budgets[client_idx]:
                layer = t.random.randrange(t.layers)
                if layer not in client_position:
                    client_position.append(layer)
            new_velocity.append(client_velocity)
            new_particle.append(client_position)
        t.solutions += 1
        return new_particle, new_velocity

    population = [t.random_solution() for _ in range(population_size)]
    velocities = [[[t.random.uniform(-1, 1) for _ in range(b)] for b in t.budgets] for _ in population]
    personal = list(population)
    values = [(t.importance(p), t.diversity(p)) for p in population]
    archive = non_dominated(population)
    best = t.random.choice(archive)
    for _ in range(iterations):  # Algorithm 12
        for i in range(population_size):
            population[i], velocities[i] = update(population[i], velocities[i], personal[i], best)
            importance, diversity = t.importance(population[i]), t.diversity(population[i])
            if importance >= values[i][0] and diversity <= values[i][1]:
                personal[i], values[i] = population[i], (importance, diversity)
        archive = non_dominated(population)
        best = t.random.choice(archive)
        t.importance(best), t.diversity(best)
    return archive


def annealing(
    t: Transcription, initial: float = 100.0, final: float = 1.0, cooling: float = 0.95, iterations: int = 20
) -> list[Solution]:
    """Algorithms 19-26: one chain."""

    def perturb(solution: Solution) -> Solution:  # Algorithm 21
        new_solution = list(solution)
        client_idx = t.random.randrange(t.clients)
        new_solution[client_idx] = t.random.sample(range(t.layers), t.budgets[client_idx])
        t.solutions += 1
        return new_solution

    current = t.random_solution()
    importance, diversity = t.importance(current), t.diversity(current)
    temperature, archive = initial, [current]
    for _ in range(iterations):  # Algorithm 19
        new = perturb(current)
        new_importance, new_diversity = t.importance(new), t.diversity(new)
        accepted = t.dominates(new, current)
        if not accepted and temperature > final:  # Algorithm 25, with its sign
            delta = (new_importance - importance) + (diversity - new_diversity)
            accepted = t.random.random() < math.exp(-delta / temperature)
        if accepted:
            current, importance, diversity = new, new_importance, new_diversity
        archive = t.update_pareto_archive(archive, current)
        temperature = temperature * cooling
    return archive


def ant_colony(
    t: Transcription,
    ants: int = 50,
    iterations: int = 20,
    evaporation: float = 0.1,
    deposit: float = 1.0,
    initial: float = 0.1,
    alpha: float = 1.0,
    beta: float = 2.0,
) -> list[Solution]:
    """Algorithms 27-34, with pheromone per client and layer."""
    pheromone = [[initial] * t.layers for _ in range(t.clients)]

    def ant_solution() -> Solution:  # Algorithm 28
        solution = []
        for client_idx in range(t.clients):
            scores, trail = t.scores[client_idx], pheromone[client_idx]
            weights = [trail[layer] ** alpha * scores[layer] ** beta for layer in range(t.layers)]
            probabilities = [weight / sum(weights) for weight in weights]
            selected = t.random.choices(range(t.layers), weights=probabilities, k=t.budgets[client_idx])
            selected = list(dict.fromkeys(selected))
            while len(selected) < t.budgets[client_idx]:
                layer = t.random.randrange(t.layers)
                if layer not in selected:
                    selected.append(layer)
            solution.append(selected)
        t.solutions += 1
        return solution

    archive: list[Solution] = []
    for _ in range(iterations):  # Algorithm 27
        for solution in [ant_solution() for _ in range(ants)]:
            t.importance(solution), t.diversity(solution)
            archive = t.update_pareto_archive(archive, solution)
        for client_idx in range(t.clients):  # Algorithm 31
            for layer in range(t.layers):
                pheromone[client_idx][layer] = pheromone[client_idx][layer] * (1 - evaporation)
        for solution in archive:
            for client_idx, client_layers in enumerate(solution):
                for layer in client_layers:
                    pheromone[client_idx][layer] = pheromone[client_idx][layer] + deposit
        best = t.pick_best_solution(archive)
        t.importance(best), t.diversity(best)
    return archive


def bee_colony(t: Transcription, bees: int = 50, iterations: int = 20, limit: int = 15) -> list[Solution]:
    """Algorithms 35-45."""

    def perturb(solution: Solution) -> Solution:  # Algorithm 41
        new_solution = [list(client_layers) for client_layers in solution]
        current_layers = new_solution[t.random.randrange(t.clients)]
        new_layer = t.random.choice([layer for layer in range(t.layers) if layer not in current_layers])
        current_layers[t.random.randrange(len(current_layers))] = new_layer
        t.solutions += 1
        return new_solution

    sources = [t.random_solution() for _ in range(bees)]
    trials = [0] * bees
    archive: list[Solution] = []
    for _ in range(iterations):  # Algorithm 35
        for i in range(bees):  # Algorithm 39
            new = perturb(sources[i])
            if t.dominates(new, sources[i]):
                sources[i], trials[i] = new, 0
            else:
                trials[i] = trials[i] + 1
        total = sum(t.importance(s) - t.diversity(s) for s in sources) or 1.0  # Algorithm 37
        probabilities = [(t.importance(s) - t.diversity(s)) / total for s in sources]
        for i in range(bees):
            if t.random.random() < probabilities[i]:
                new = perturb(sources[i])
                if t.dominates(new, sources[i]):
                    sources[i] = new
        for i in range(bees):  # Algorithm 38
            if trials[i] >= limit:
                sources[i], trials[i] = t.random_solution(), 0
        for solution in sources:
            archive = t.update_pareto_archive(archive, solution)
        best = t.pick_best_solution(archive)
        t.importance(best), t.diversity(best)
    return archive


TRANSCRIPTIONS: dict[str, Callable[..., list[Solution]]] = {
    "nsga2": nsga,
    "mopso": mopso,
    "annealing": annealing,
    "ant_colony": ant_colony,
    "bee_colony": bee_colony,
}
