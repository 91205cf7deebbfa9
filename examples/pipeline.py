"""Train as a pipeline: this process aggregates over the graph, workers that hold no graph do the tensor work.

python examples/pipeline.py
"""

import siafu


def main() -> None:
    graph = siafu.load("community:nodes=5000,classes=10,features=32")
    whole = siafu.train(graph, epochs=20, threads=1)
    run = siafu.train(
        graph, method="pipeline", workers="threads", num_workers=2, intervals=8, epochs=20, threads=1
    )  # workers may also be processes, AWS Lambda or HTTP functions, or Ray tasks: docs/pipeline.md
    print(f"test accuracy {run.test_accuracy:.3f}, and {whole.test_accuracy:.3f} by method full")
    print(f"{run.metrics['tasks']:,} tasks for ${run.metrics['dollars']:.6f}, a server's time at list price")
    print(f"every task of the first epochs is in {run.directory / 'trace.json'}, for ui.perfetto.dev")


if __name__ == "__main__":
    main()
